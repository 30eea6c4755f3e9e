import org.apache.kafka.common.protocol.Errors;

/** The error codes of the protocol, {@code NAME CODE} in each line. */
public class ErrorCodes {
  public static void main(String[] args) {
    for (Errors error : Errors.values()) System.out.println(error.name() + " " + error.code());
  }
}
