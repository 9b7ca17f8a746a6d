import apache.rocketmq.v2.MQService;
import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.shaded.com.google.protobuf.Descriptors.Descriptor;
import org.apache.rocketmq.shaded.com.google.protobuf.Descriptors.MethodDescriptor;
import org.apache.rocketmq.shaded.com.google.protobuf.DynamicMessage;
import org.apache.rocketmq.shaded.com.google.protobuf.InvalidProtocolBufferException;
import org.apache.rocketmq.shaded.com.google.protobuf.util.JsonFormat;
import org.apache.rocketmq.shaded.io.grpc.CallOptions;
import org.apache.rocketmq.shaded.io.grpc.ClientCall;
import org.apache.rocketmq.shaded.io.grpc.ManagedChannel;
import org.apache.rocketmq.shaded.io.grpc.ManagedChannelBuilder;
import org.apache.rocketmq.shaded.io.grpc.Metadata;
import org.apache.rocketmq.shaded.io.grpc.Status;

/**
 * Calls that no stock client makes: any method, with requests as JSON or as raw bytes, and any metadata.
 *
 * The answer holds gRPC's status and the messages that came before it. A call whose requests stay open ("open") ends
 * when "count" messages have come.
 */
final class RawCalls {
    private static final String SERVICE = "apache.rocketmq.v2.MessagingService";
    private static final Map<String, ManagedChannel> CHANNELS = new ConcurrentHashMap<>();

    private RawCalls() {
    }

    static void register() {
        CommandLoop.OPERATIONS.put("rpc", RawCalls::call);
    }

    private static Object call(JSONObject command) throws Exception {
        String name = command.getString("method");
        MethodDescriptor method = MQService.getDescriptor().findServiceByName("MessagingService").findMethodByName(name);
        ManagedChannel channel = CHANNELS.computeIfAbsent(command.getString("endpoints"), target ->
            ManagedChannelBuilder.forTarget(target).usePlaintext().maxInboundMessageSize(64 << 20).build());
        Bytes bytes = new Bytes();
        ClientCall<byte[], byte[]> call = channel.newCall(
            org.apache.rocketmq.shaded.io.grpc.MethodDescriptor.newBuilder(bytes, bytes)
                .setType(org.apache.rocketmq.shaded.io.grpc.MethodDescriptor.MethodType.BIDI_STREAMING)
                .setFullMethodName(SERVICE + '/' + name).build(),
            CallOptions.DEFAULT.withDeadlineAfter(command.getLongValue("timeout"), TimeUnit.MILLISECONDS));
        Answers answers = new Answers(call, command);
        call.start(answers, metadata(command.getJSONObject("metadata")));
        call.request(Integer.MAX_VALUE);
        for (Object request : command.getJSONArray("requests")) {
            call.sendMessage(encode(request, method));
        }
        if (!command.getBooleanValue("open")) {
            call.halfClose();
        }
        return answers.result(method == null ? null : method.getOutputType(), command.getLongValue("timeout"));
    }

    private static Metadata metadata(JSONObject values) {
        Metadata metadata = new Metadata();
        values.forEach((name, value) ->
            metadata.put(Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER), value.toString()));
        return metadata;
    }

    /** Returns the bytes of a request: text is base64 of them, an object is JSON of the method's input. */
    private static byte[] encode(Object request, MethodDescriptor method) throws InvalidProtocolBufferException {
        if (request instanceof String) {
            return Base64.getDecoder().decode((String) request);
        }
        DynamicMessage.Builder builder = DynamicMessage.newBuilder(method.getInputType());
        JsonFormat.parser().merge(JSON.toJSONString(request), builder);
        return builder.build().toByteArray();
    }

    /** What the server answered to one call. */
    private static final class Answers extends ClientCall.Listener<byte[]> {
        private final ClientCall<byte[], byte[]> call;
        private final int wanted;
        private final List<byte[]> messages = new ArrayList<>();
        private final List<Status> ends = new ArrayList<>();

        Answers(ClientCall<byte[], byte[]> call, JSONObject command) {
            this.call = call;
            this.wanted = command.getBooleanValue("open") ? command.getIntValue("count") : Integer.MAX_VALUE;
        }

        @Override
        public synchronized void onMessage(byte[] message) {
            messages.add(message);
            if (messages.size() == wanted) {
                call.halfClose();
                call.cancel("as many messages as wanted", null);
            }
        }

        @Override
        public void onClose(Status status, Metadata trailers) {
            synchronized (ends) {
                ends.add(status);
                ends.notifyAll();
            }
        }

        Object result(Descriptor type, long timeout) throws Exception {
            List<Status> status = Waiting.untilSize(ends, 1, timeout + 5000);
            List<Object> answers = new ArrayList<>();
            synchronized (this) {
                for (byte[] message : messages) {
                    DynamicMessage parsed = DynamicMessage.parseFrom(type, message);
                    answers.add(JSON.parseObject(JsonFormat.printer().includingDefaultValueFields().print(parsed)));
                }
            }
            Map<String, Object> result = new LinkedHashMap<>();
            result.put("status", status.isEmpty() ? "NONE" : status.get(0).getCode().name());
            result.put("text", status.isEmpty() ? null : status.get(0).getDescription());
            result.put("answers", answers);
            return result;
        }
    }

    /** Passes bytes through as they are. */
    private static final class Bytes implements org.apache.rocketmq.shaded.io.grpc.MethodDescriptor.Marshaller<byte[]> {
        @Override
        public InputStream stream(byte[] value) {
            return new ByteArrayInputStream(value);
        }

        @Override
        public byte[] parse(InputStream stream) {
            try {
                ByteArrayOutputStream out = new ByteArrayOutputStream();
                byte[] chunk = new byte[8192];
                for (int size = stream.read(chunk); size >= 0; size = stream.read(chunk)) {
                    out.write(chunk, 0, size);
                }
                return out.toByteArray();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }
}
