import java.util.ArrayList;
import java.util.List;

/** Waits for lists that other threads fill and notify. */
final class Waiting {
    private Waiting() {
    }

    /** Returns a copy of the list once it has so many elements, or when the time (ms) is up. */
    static <T> List<T> untilSize(List<T> list, int count, long timeout) throws InterruptedException {
        long deadline = System.currentTimeMillis() + timeout;
        synchronized (list) {
            while (list.size() < count && System.currentTimeMillis() < deadline) {
                list.wait(Math.max(1, deadline - System.currentTimeMillis()));
            }
            return new ArrayList<>(list);
        }
    }
}
