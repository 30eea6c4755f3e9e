import java.lang.reflect.InvocationTargetException;
import java.util.ArrayList;
import java.util.List;

/**
 * Commands MAIN argument... [-- MAIN argument...]...: several of Kafka's admin commands in one JVM.
 *
 * They end by System.exit, which a security manager turns into an exception: Java 17 wants -Djava.security.manager=allow.
 */
public class Commands {
    static class Exit extends SecurityException {
        final int status;

        Exit(int status) {
            this.status = status;
        }
    }

    public static void main(String[] args) throws Exception {
        System.setSecurityManager(new SecurityManager() {
            public void checkPermission(java.security.Permission p) {
                if (p.getName().startsWith("exitVM.")) throw new Exit(Integer.parseInt(p.getName().substring(7)));
            }

            public void checkPermission(java.security.Permission p, Object context) {
            }
        });
        List<List<String>> commands = new ArrayList<>();
        commands.add(new ArrayList<String>());
        for (String word : args)
            if (word.equals("--")) commands.add(new ArrayList<String>());
            else commands.get(commands.size() - 1).add(word);
        int failed = 0;
        for (List<String> command : commands)
            try {
                Class.forName(command.get(0)).getMethod("main", String[].class)
                    .invoke(null, (Object) command.subList(1, command.size()).toArray(new String[0]));
            } catch (InvocationTargetException e) {
                Throwable cause = e.getCause();
                if (cause instanceof Exit && ((Exit) cause).status == 0) continue;
                failed++;
                System.out.println("FAILED " + command + " " + cause);
            }
        System.out.flush();
        System.setSecurityManager(null);
        Runtime.getRuntime().halt(failed);
    }
}
