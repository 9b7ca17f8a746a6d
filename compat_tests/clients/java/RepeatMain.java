/** Calls another class's main several times in this process: class times. For programs whose message count is a constant. */
public final class RepeatMain {
    private RepeatMain() {
    }

    public static void main(String[] args) throws Exception {
        java.lang.reflect.Method main = Class.forName(args[0]).getMethod("main", String[].class);
        for (int i = 0; i < Integer.parseInt(args[1]); i++) {
            main.invoke(null, (Object) new String[0]);
        }
    }
}
