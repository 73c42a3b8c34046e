import java.nio.ByteBuffer;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.FileChannel.MapMode;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.IntStream;

/** Several windows over one file, written by threads, read through another map, copied in every way a channel has. */
public class Windows {
    static final int WINDOW = 10 << 20, COUNT = 4, SHIFT = 100;

    static FileChannel open(String path) throws Exception {
        return FileChannel.open(Path.of(path), StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE);
    }

    static void check(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
    }

    /** Stores all over one window, in two passes: every 8 bytes in order, then at random places with what was there. */
    static long fill(MappedByteBuffer window, int number) {
        for (int at = 0; at <= WINDOW - 8; at += 8) window.putLong(at, at * 31L + number);
        Random chance = new Random(number);
        long sum = 0;
        for (int i = 0; i < 10000; i++) {
            int at = chance.nextInt(WINDOW / 8) * 8;
            sum += window.getLong(at);
            window.putLong(at, window.getLong(at) ^ i);
            if (i % 4000 == 3999) window.force(at / 4096 * 4096, 4096);
        }
        window.force();
        return sum;
    }

    public static void main(String[] arguments) throws Exception {
        String path = arguments[0];
        try (FileChannel file = open(path)) {
            // Not at page borders: neighbouring windows share a page.
            MappedByteBuffer[] windows = new MappedByteBuffer[COUNT];
            for (int i = 0; i < COUNT; i++)
                windows[i] = file.map(MapMode.READ_WRITE, (long) i * WINDOW + SHIFT, WINDOW);
            var threads = Executors.newFixedThreadPool(COUNT);
            var work = IntStream.range(0, COUNT).mapToObj(i -> (Callable<Long>) () -> fill(windows[i], i)).toList();
            for (Future<Long> sum : threads.invokeAll(work)) System.out.println("filled " + sum.get());
            threads.shutdown();

            MappedByteBuffer whole = file.map(MapMode.READ_ONLY, 0, file.size());
            whole.load();
            System.out.println("size " + file.size() + ", first pages there " + file.map(MapMode.READ_ONLY, 0, 8).load().isLoaded());
            long sum = 0;
            for (int at = whole.limit() - 1; at >= 0; at--) sum = sum * 31 + whole.get(at);
            System.out.println("backward " + sum);

            // The channel and the mappings are one file.
            file.write(ByteBuffer.wrap("written by the channel".getBytes()), 5_000_000);
            byte[] seen = new byte[22];
            whole.get(5_000_000, seen);
            check(new String(seen).equals("written by the channel"), "a write that the mapping does not show");
            windows[1].put(4095, (byte) 77);
            ByteBuffer one = ByteBuffer.allocateDirect(1);
            file.read(one, (long) WINDOW + SHIFT + 4095);
            check(one.get(0) == 77, "a store that read does not show");

            MappedByteBuffer own = file.map(MapMode.PRIVATE, 0, WINDOW);
            for (int at = 0; at < WINDOW; at += 4096) own.put(at, (byte) 1);
            check(whole.get(4096) == (byte) windows[0].get(4096 - SHIFT), "a private store that is not private");

            try (FileChannel copy = open(path + ".sent"); FileChannel other = open(path + ".written")) {
                long sent = 0;
                while (sent < file.size()) sent += file.transferTo(sent, file.size() - sent, copy);
                other.write(whole.duplicate());
                check(copy.size() == file.size() && other.size() == file.size(), "a short copy");
                MappedByteBuffer into = other.map(MapMode.READ_WRITE, 0, other.size());
                file.read(into.slice(1 << 20, 6 << 20), 3 << 20);
                MappedByteBuffer from = copy.map(MapMode.READ_ONLY, 0, copy.size());
                check(from.mismatch(whole) == -1, "another copy");
                System.out.println("differs at " + into.mismatch(from));
            }
        }
    }
}
