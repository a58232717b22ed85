import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.Scanner;

/** Prints one key for each line of its input: a function and its arguments, as hex with commas. */
public final class Run {
    public static void main(String[] arguments) throws Exception {
        Scanner lines = new Scanner(System.in, StandardCharsets.US_ASCII);
        while (lines.hasNextLine()) {
            String[] hex = lines.nextLine().split(",", -1);
            String[] texts = Arrays.stream(hex).map(Run::text).toArray(String[]::new);
            String[] rest = Arrays.copyOfRange(texts, Math.min(3, texts.length), texts.length);
            String key;
            if (texts[0].equals("opaque")) key = Keys.opaque(HexFormat.of().parseHex(hex[1]), texts[2], rest);
            else if (texts[0].equals("bucket")) key = Keys.bucket(Integer.parseInt(texts[1]), texts[2], rest[0], rest[1]);
            else key = Keys.invertedTicks(texts[1]);
            System.out.println(key);
        }
    }

    private static String text(String hex) {
        return new String(HexFormat.of().parseHex(hex), StandardCharsets.UTF_8);
    }
}
