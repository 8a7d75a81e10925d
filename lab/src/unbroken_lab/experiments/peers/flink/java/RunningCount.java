import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.streaming.api.datastream.DataStreamSource;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;

/** The job of `unbroken bench peers`: a keyed running count and maximum in SQL; results go to the standard output. */
public class RunningCount {
    public static void main(String[] args) throws Exception {
        long[] numbers = new long[args.length];
        for (int i = 0; i < args.length; i++) {
            numbers[i] = Long.parseLong(args[i]);
        }
        long rows = numbers[0];
        DueEvents due = new DueEvents(numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], numbers[6]);
        TypeInformation type = Types.ROW_NAMED(
            new String[] {"k", "v"}, new TypeInformation[] {Types.LONG, Types.LONG});
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment();
        DataStreamSource events = environment.fromSource(
            new DataGeneratorSource(due, rows, type), WatermarkStrategy.noWatermarks(), "events", type);
        // One source, as for the other systems.
        events.setParallelism(1);
        StreamTableEnvironment tables = StreamTableEnvironment.create(environment);
        tables.createTemporaryView("events", events);
        tables.executeSql("CREATE TABLE results (k BIGINT, n BIGINT, top BIGINT) WITH ('connector' = 'print')");
        tables.executeSql("INSERT INTO results SELECT k, COUNT(*), MAX(v) FROM events GROUP BY k");
    }
}
