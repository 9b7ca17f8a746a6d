import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import java.io.File;
import java.lang.annotation.Annotation;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Enumeration;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.jar.JarEntry;
import java.util.jar.JarFile;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.annotation.CFNotNull;
import org.apache.rocketmq.remoting.annotation.CFNullable;
import org.apache.rocketmq.remoting.exception.RemotingCommandException;
import org.apache.rocketmq.remoting.protocol.FastCodesHeader;

/**
 * Prints, as JSON, what the protocol's classes in the jars of the class path declare: the constants of request and
 * response codes, and the headers with their fields. With an argument "bodies" also the JSON properties of the bodies.
 */
public final class DescribeDeclarations {
    private static final String[] REQUEST_CODES = {"RequestCode"};
    private static final String[] RESPONSE_CODES = {"RemotingSysResponseCode", "ResponseCode"};

    private DescribeDeclarations() {
    }

    public static void main(String[] args) throws Exception {
        Map<String, Object> found = new LinkedHashMap<>();
        List<Class<?>> classes = protocolClasses();
        found.put("request_codes", constants(classes, REQUEST_CODES));
        found.put("response_codes", constants(classes, RESPONSE_CODES));
        Map<String, Object> headers = new TreeMap<>();
        for (Class<?> each : classes) {
            if (CommandCustomHeader.class.isAssignableFrom(each) && !Modifier.isAbstract(each.getModifiers())) {
                headers.put(each.getSimpleName(), header(each));
            }
        }
        found.put("headers", headers);
        if (args.length > 0 && args[0].equals("bodies")) {
            found.put("bodies", Class.forName("DescribeBodies").getMethod("describe", List.class).invoke(null, classes));
        }
        System.out.println(json(found));
    }

    /** Returns the classes of the protocol and, of `common`, those that are sent in bodies. */
    private static List<Class<?>> protocolClasses() throws Exception {
        Map<String, Class<?>> found = new TreeMap<>();
        for (String part : System.getProperty("java.class.path").split(File.pathSeparator)) {
            if (!part.endsWith(".jar") || !new File(part).getName().startsWith("rocketmq-")) {
                continue;
            }
            try (JarFile jar = new JarFile(part)) {
                for (Enumeration<JarEntry> entries = jar.entries(); entries.hasMoreElements();) {
                    String name = entries.nextElement().getName();
                    if (name.matches("org/apache/rocketmq/(remoting|common)/(protocol/.*|lite/.*|TopicConfig|message/MessageQueue(Assignment)?)\\.class")
                        && !name.matches(".*\\$\\d+\\.class")) {
                        String type = name.substring(0, name.length() - 6).replace('/', '.');
                        found.put(type, Class.forName(type, false, DescribeDeclarations.class.getClassLoader()));
                    }
                }
            }
        }
        return new ArrayList<>(found.values());
    }

    private static Map<String, Object> constants(List<Class<?>> classes, String[] names) throws Exception {
        Map<String, Object> found = new TreeMap<>();
        for (Class<?> each : classes) {
            for (String name : names) {
                if (each.getSimpleName().equals(name)) {
                    for (Field field : each.getDeclaredFields()) {
                        if (Modifier.isStatic(field.getModifiers()) && field.get(null) instanceof Number) {
                            found.put(field.getName(), ((Number) field.get(null)).intValue()); // int or short
                        }
                    }
                }
            }
        }
        return found;
    }

    private static Map<String, Object> header(Class<?> type) throws Exception {
        Map<String, Object> found = new LinkedHashMap<>();
        Integer code = actionCode(type);
        if (code != null) {
            found.put("code", code);
        }
        Object fresh = type.getDeclaredConstructor().newInstance();
        List<Object> described = new ArrayList<>();
        List<Field> fields = fields(type);
        for (Field field : fields) {
            described.add(field(field, fresh));
        }
        found.put("fields", described);
        if (FastCodesHeader.class.isAssignableFrom(type)) {
            found.put("fast", fast(type, fields));
        }
        return found;
    }

    /** Returns what RemotingCommand takes for the fields of a header: those of the class, then those of its bases. */
    private static List<Field> fields(Class<?> type) {
        List<Field> found = new ArrayList<>();
        for (Class<?> each = type; each != Object.class; each = each.getSuperclass()) {
            for (Field field : each.getDeclaredFields()) {
                if (!Modifier.isStatic(field.getModifiers()) && !field.getName().startsWith("this")) {
                    field.setAccessible(true);
                    found.add(field);
                }
            }
        }
        return found;
    }

    private static Map<String, Object> field(Field field, Object fresh) throws Exception {
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("name", field.getName());
        found.put("type", field.getType().getSimpleName());
        if (field.isAnnotationPresent(CFNotNull.class)) {
            found.put("not_null", true);
        }
        if (field.isAnnotationPresent(CFNullable.class)) {
            found.put("nullable", true);
        }
        Object value = field.get(fresh);
        if (value != null && !isNow(value)) {
            found.put("default", value.toString());
        }
        return found;
    }

    /** Tells if a field has the time at which its header was built, which is no constant. */
    private static boolean isNow(Object value) {
        return value instanceof Long && Math.abs(System.currentTimeMillis() - (Long) value) < 86_400_000L;
    }

    /** Returns the code of a header's action; null for one without, or where the annotation does not exist (4.9). */
    @SuppressWarnings("unchecked")
    private static Integer actionCode(Class<?> type) throws Exception {
        try {
            Class<? extends Annotation> action =
                (Class<? extends Annotation>) Class.forName("org.apache.rocketmq.common.action.RocketMQAction");
            Annotation found = type.getAnnotation(action);
            return found == null ? null : (Integer) action.getMethod("value").invoke(found);
        } catch (ClassNotFoundException missing) {
            return null;
        }
    }

    /** Returns the fields that a header's own codec writes and reads, and those without which it does not read. */
    private static Map<String, Object> fast(Class<?> type, List<Field> fields) throws Exception {
        HashMap<String, String> texts = new HashMap<>();
        FastCodesHeader full = (FastCodesHeader) type.getDeclaredConstructor().newInstance();
        for (Field field : fields) {
            Object sample = sample(field.getType());
            field.set(full, sample);
            texts.put(field.getName(), String.valueOf(sample));
        }
        List<Object> read = new ArrayList<>();
        List<Object> required = new ArrayList<>();
        FastCodesHeader all = (FastCodesHeader) type.getDeclaredConstructor().newInstance();
        all.decode(texts);
        for (Field field : fields) {
            if (String.valueOf(field.get(all)).equals(texts.get(field.getName()))) {
                read.add(field.getName());
            }
            HashMap<String, String> others = new HashMap<>(texts);
            others.remove(field.getName());
            try {
                ((FastCodesHeader) type.getDeclaredConstructor().newInstance()).decode(others);
            } catch (RemotingCommandException missing) {
                required.add(field.getName());
            }
        }
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("written", written(full));
        found.put("read", read);
        found.put("required", required);
        return found;
    }

    private static List<Object> written(FastCodesHeader header) {
        ByteBuf out = Unpooled.buffer();
        header.encode(out);
        List<Object> names = new ArrayList<>();
        while (out.isReadable()) {
            names.add(out.readCharSequence(out.readShort(), StandardCharsets.UTF_8).toString());
            out.skipBytes(out.readInt());
        }
        return names;
    }

    private static Object sample(Class<?> type) {
        if (type == int.class || type == Integer.class) {
            return 3;
        }
        if (type == long.class || type == Long.class) {
            return 3L;
        }
        if (type == boolean.class || type == Boolean.class) {
            return true;
        }
        if (type == String.class) {
            return "3";
        }
        throw new IllegalArgumentException("a header with its own codec has a field of " + type);
    }

    private static String json(Object value) {
        if (value instanceof Map) {
            List<String> members = new ArrayList<>();
            for (Map.Entry<?, ?> each : ((Map<?, ?>) value).entrySet()) {
                members.add(json(each.getKey()) + ":" + json(each.getValue()));
            }
            return "{" + String.join(",", members) + "}";
        }
        if (value instanceof Collection) {
            List<String> items = new ArrayList<>();
            for (Object each : (Collection<?>) value) {
                items.add(json(each));
            }
            return "[" + String.join(",", items) + "]";
        }
        boolean isPlain = value instanceof Number || value instanceof Boolean;
        return isPlain ? value.toString() : "\"" + value.toString().replace("\\", "\\\\").replace("\"", "\\\"") + "\"";
    }
}
