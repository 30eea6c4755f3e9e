import java.util.function.Supplier;
import org.apache.kafka.common.utils.Time;

/** A settable clock given to the real Kafka classes so that LogAppendTime is deterministic. */
public class FixedTime implements Time {
  public volatile long now;

  public FixedTime(long now) {
    this.now = now;
  }

  public long milliseconds() {
    return now;
  }

  public long hiResClockMs() {
    return now;
  }

  public long nanoseconds() {
    return now * 1000000L;
  }

  public void sleep(long ms) {
    now += ms;
  }

  public void waitObject(Object o, Supplier<Boolean> c, long d) {
    throw new UnsupportedOperationException();
  }
}
