// Java's mapped buffers. It reads random rows of 512 bytes.
import java.io.BufferedOutputStream;
import java.io.FileOutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

public class Rows extends Program {
    static final int ROW = 512, ROWS = 256, STEP = 1 << 20;
    // A buffer has at most 2 GiB.
    static final long PART = 1L << 30;
    MappedByteBuffer[] parts;
    long rows;

    public static void main(String[] args) throws Exception {
        new Rows().start(args);
    }

    void open(String data) throws Exception {
        FileChannel file = FileChannel.open(Path.of(data, "rows"), StandardOpenOption.READ);
        long bytes = file.size();
        rows = bytes / ROW;
        parts = new MappedByteBuffer[(int) ((bytes + PART - 1) / PART)];
        for (int at = 0; at < parts.length; at++) {
            parts[at] = file.map(FileChannel.MapMode.READ_ONLY, at * PART, Math.min(PART, bytes - at * PART));
            parts[at].order(ByteOrder.LITTLE_ENDIAN);
        }
    }

    int operations() {
        return ROWS;
    }

    long batch(long number) {
        long sum = 0;
        for (long turn = number * ROWS; turn < (number + 1) * ROWS; turn++) {
            long at = (turn * 0x9E3779B97F4A7C15L >>> 16) % rows * ROW;
            MappedByteBuffer part = parts[(int) (at / PART)];
            for (int place = (int) (at % PART), last = place + ROW; place < last; place += 8) sum = sum * 31 + part.getLong(place);
        }
        return sum;
    }

    void make(String data, long bytes) throws Exception {
        ByteBuffer block = ByteBuffer.allocate(STEP).order(ByteOrder.LITTLE_ENDIAN);
        try (BufferedOutputStream file = new BufferedOutputStream(new FileOutputStream(data + "/rows"))) {
            for (long at = 0; at < bytes / STEP * STEP; at += STEP) {
                for (int place = 0; place < STEP; place += 8) block.putLong(place, (at + place) * 0x9E3779B97F4A7C15L);
                file.write(block.array());
            }
        }
    }
}
