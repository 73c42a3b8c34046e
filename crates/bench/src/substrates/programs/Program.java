// The common part of all programs in Java. Their commands and output are those of program.h, but for its lines on the way.
abstract class Program {
    private final StringBuilder sums = new StringBuilder();
    private long done;

    abstract void make(String data, long bytes) throws Exception;

    abstract void open(String data) throws Exception;

    // Operations of a batch.
    abstract int operations();

    // Makes the n-th batch. Returns its sum.
    abstract long batch(long number) throws Exception;

    void start(String[] args) throws Exception {
        if (args[0].equals("make")) {
            make(args[1], Long.parseLong(args[2]));
            return;
        }
        open(args[1]);
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
    String work(double seconds) throws Exception {
        long start = System.nanoTime(), end, wanted = (long) (seconds * 1e9), first = done;
        do {
            sums.append(' ').append(Long.toHexString(batch(done)));
            done++;
            end = System.nanoTime();
        } while (wanted > 0 ? end - start < wanted : System.in.available() == 0);
        return (done - first) * operations() + " " + (end - start) / 1e9;
    }
}
