import com.alibaba.fastjson2.JSONFactory;
import com.alibaba.fastjson2.writer.FieldWriter;
import com.alibaba.fastjson2.writer.ObjectWriter;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.Type;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** Describes the JSON properties of bodies as fastjson2 sees them, which the official servers use since 5.0. */
public final class DescribeBodies {
    private DescribeBodies() {
    }

    public static Map<String, Object> describe(List<Class<?>> classes) {
        Map<String, Object> found = new TreeMap<>();
        for (Class<?> each : classes) {
            if (isBody(each)) {
                Map<String, Object> properties = new TreeMap<>();
                ObjectWriter<?> writer = JSONFactory.getDefaultObjectWriterProvider().getObjectWriter(each);
                for (Object property : writer.getFieldWriters()) {
                    FieldWriter<?> field = (FieldWriter<?>) property;
                    properties.put(field.fieldName, typeName(field.fieldType));
                }
                found.put(each.getSimpleName(), properties);
            }
        }
        return found;
    }

    private static boolean isBody(Class<?> type) {
        String place = type.getPackage().getName();
        return !type.isEnum() && (type.getSimpleName().equals("DataVersion") || place.startsWith("org.apache.rocketmq.common")
            || place.matches(".*\\.protocol\\.(admin|body|heartbeat|route|statictopic|subscription|topic)"));
    }

    private static String typeName(Type type) {
        if (type instanceof ParameterizedType) {
            List<String> arguments = new ArrayList<>();
            for (Type each : ((ParameterizedType) type).getActualTypeArguments()) {
                arguments.add(typeName(each));
            }
            return typeName(((ParameterizedType) type).getRawType()) + "<" + String.join(", ", arguments) + ">";
        }
        return type instanceof Class ? ((Class<?>) type).getSimpleName() : type.toString();
    }
}
