import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Drives the stock client that speaks gRPC by commands, see CommandLoop. Compiled against 5.0; runs on later ones. */
public final class GrpcDriver {
    private static final Pattern CODE = Pattern.compile("response-code=(\\d+)");

    private GrpcDriver() {
    }

    public static void main(String[] args) throws Exception {
        CommandLoop loop = new CommandLoop(GrpcDriver::responseCode);
        GrpcProducers.register();
        GrpcSimpleConsumers.register();
        GrpcPushConsumers.register();
        RawCalls.register();
        loop.run();
    }

    /** Returns the code in an exception's text: the client offers it nowhere else. */
    private static int responseCode(Throwable error) {
        Matcher found = CODE.matcher(String.valueOf(error.getMessage()));
        return found.find() ? Integer.parseInt(found.group(1)) : -1;
    }
}
