import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.types.Row;

/**
 * Makes event number n when it is due, and not before: the events of events.py.
 *
 * Flink's own generator keeps the number of the next event in its checkpoints and begins there again after a failure.
 * Events that became due meanwhile are then made at once, as from a log.
 *
 * Written in the Java that Janino compiles: without lambdas and diamonds, and with erased types in signatures.
 */
public class DueEvents implements GeneratorFunction {
    private static final long serialVersionUID = 1L;

    private final long beganMs;
    private final long rate;
    private final long keys;
    private final long step;
    private final long factor;
    private final long modulus;

    public DueEvents(long beganMs, long rate, long keys, long step, long factor, long modulus) {
        this.beganMs = beganMs;
        this.rate = rate;
        this.keys = keys;
        this.step = step;
        this.factor = factor;
        this.modulus = modulus;
    }

    public Object map(Object number) throws Exception {
        long index = ((Long) number).longValue();
        long dueMs = this.beganMs + index * 1000L / this.rate;
        long wait = dueMs - System.currentTimeMillis();
        if (wait > 0L) {
            Thread.sleep(wait);
        }
        Row row = new Row(2);
        row.setField(0, Long.valueOf(index * this.step % this.keys));
        row.setField(1, Long.valueOf(index * this.factor % this.modulus));
        return row;
    }
}
