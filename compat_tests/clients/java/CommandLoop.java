import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.function.ToIntFunction;

/**
 * Runs operations by commands: one JSON object per line on standard input, one answer per line on standard output.
 * {"id":7,"op":"send",...} is answered by {"id":7,"ok":...} or by {"id":7,"error":{"type":..,"code":..,"message":..}}.
 * Each command runs in its own thread, so answers come in the order in which commands end. It needs no RocketMQ client.
 */
final class CommandLoop {
    interface Operation {
        Object run(JSONObject command) throws Exception;
    }

    static final Map<String, Operation> OPERATIONS = new ConcurrentHashMap<>();
    private final PrintStream answers = System.out;
    private final ToIntFunction<Throwable> codeOf;

    /** Takes over standard output. codeOf returns the response code that an exception tells, or -1. */
    CommandLoop(ToIntFunction<Throwable> codeOf) {
        this.codeOf = codeOf;
        System.setOut(System.err); // the output of client libraries must not mix with the answers
        OPERATIONS.put("hello", command -> System.getProperty("java.version"));
    }

    /** Runs commands until standard input ends, and then ends this JVM. */
    void run() throws IOException {
        ExecutorService workers = Executors.newCachedThreadPool();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JSONObject command = JSON.parseObject(line);
            workers.execute(() -> answer(command));
        }
        Runtime.getRuntime().halt(0);
    }

    private void answer(JSONObject command) {
        byte[] text;
        try {
            text = line(command, "ok", run(command));
        } catch (Throwable error) {
            text = line(command, "error", describe(error, codeOf));
        }
        synchronized (answers) {
            answers.write(text, 0, text.length);
            answers.flush();
        }
    }

    private static Object run(JSONObject command) throws Exception {
        Operation operation = OPERATIONS.get(command.getString("op"));
        if (operation == null) {
            throw new IllegalArgumentException("unknown operation " + command.getString("op"));
        }
        return operation.run(command);
    }

    private static byte[] line(JSONObject command, String name, Object value) {
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("id", command.get("id"));
        result.put(name, value);
        String text = JSON.toJSONString(result, SerializerFeature.DisableCircularReferenceDetect, SerializerFeature.WriteMapNullValue);
        return (text + '\n').getBytes(StandardCharsets.UTF_8);
    }

    /** Returns what the other side learns of an exception. */
    static Map<String, Object> describe(Throwable error, ToIntFunction<Throwable> codeOf) {
        Map<String, Object> result = new LinkedHashMap<>();
        int code = -1;
        for (Throwable at = error; at != null && code == -1; at = at.getCause()) {
            code = codeOf.applyAsInt(at);
        }
        result.put("type", error.getClass().getSimpleName());
        result.put("code", code);
        StringBuilder message = new StringBuilder(String.valueOf(error));
        for (Throwable cause = error.getCause(); cause != null; cause = cause.getCause()) {
            message.append("; caused by ").append(cause); // a producer that retried tells the answer only there
        }
        result.put("message", message.toString());
        return result;
    }
}
