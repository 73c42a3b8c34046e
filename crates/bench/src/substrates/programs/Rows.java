// Java's mapped buffers. It reads random rows of 512 bytes. Its commands are those of program.h.
import java.io.BufferedOutputStream;
import java.io.FileOutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

public class Rows {
    static final int ROW = 512, ROWS = 256, STEP = 1 << 20;
    // A buffer has at most 2 GiB.
    static final long PART = 1L << 30;
    static final StringBuilder sums = new StringBuilder();
    static MappedByteBuffer[] parts;
    static long rows, done;

    public static void main(String[] args) throws Exception {
        if (args[0].equals("make")) {
            make(args[1], Long.parseLong(args[2]));
            return;
        }
        FileChannel file = FileChannel.open(Path.of(args[1], "rows"), StandardOpenOption.READ);
        long bytes = file.size();
        rows = bytes / ROW;
        parts = new MappedByteBuffer[(int) ((bytes + PART - 1) / PART)];
        for (int at = 0; at < parts.length; at++) {
            parts[at] = file.map(FileChannel.MapMode.READ_ONLY, at * PART, Math.min(PART, bytes - at * PART));
            parts[at].order(ByteOrder.LITTLE_ENDIAN);
        }
        double seconds = Double.parseDouble(args[2]);
        if (args.length > 3) {
            say("start");
            say("cold " + work(seconds));
            work(0);
        }
        say("begin");
        System.out.println("end " + work(seconds) + sums);
    }

    static void say(String what) {
        System.out.println(what);
        System.out.flush();
    }

    // Works for so many seconds. If that is 0, works until something can be read from standard input.
    static String work(double seconds) throws Exception {
        long start = System.nanoTime(), end, wanted = (long) (seconds * 1e9), first = done;
        do {
            long sum = 0;
            for (long turn = done * ROWS; turn < (done + 1) * ROWS; turn++) {
                long at = (turn * 0x9E3779B97F4A7C15L >>> 16) % rows * ROW;
                MappedByteBuffer part = parts[(int) (at / PART)];
                for (int place = (int) (at % PART), last = place + ROW; place < last; place += 8) sum = sum * 31 + part.getLong(place);
            }
            sums.append(' ').append(Long.toHexString(sum));
            done++;
            end = System.nanoTime();
        } while (wanted > 0 ? end - start < wanted : System.in.available() == 0);
        return (done - first) * ROWS + " " + (end - start) / 1e9;
    }

    static void make(String data, long bytes) throws Exception {
        ByteBuffer block = ByteBuffer.allocate(STEP).order(ByteOrder.LITTLE_ENDIAN);
        try (BufferedOutputStream file = new BufferedOutputStream(new FileOutputStream(data + "/rows"))) {
            for (long at = 0; at < bytes / STEP * STEP; at += STEP) {
                for (int place = 0; place < STEP; place += 8) block.putLong(place, (at + place) * 0x9E3779B97F4A7C15L);
                file.write(block.array());
            }
        }
    }
}
