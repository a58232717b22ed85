import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.time.Instant;
import java.time.OffsetDateTime;
import java.util.zip.CRC32;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/** Keys as rekey makes them: opaque ids, buckets, inverted ticks. Java 11 or later, without libraries. */
public final class Keys {
    private static final String CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz";

    /** The id that keys.opaque(*parts, domain=domain, secret=...) makes. */
    public static String opaque(byte[] secret, String domain, String... parts) throws GeneralSecurityException {
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec(secret, "HmacSHA256"));
        mac.update(("rekey/v1\0" + domain + "\0").getBytes(StandardCharsets.UTF_8));
        for (String part : parts) {
            byte[] value = part.getBytes(StandardCharsets.UTF_8);
            if (parts.length > 1) mac.update(ByteBuffer.allocate(4).putInt(value.length).array());
            mac.update(value);
        }
        BigInteger number = new BigInteger(1, mac.doFinal()).shiftRight(96);
        StringBuilder id = new StringBuilder();
        for (int at = 155; at >= 0; at -= 5) id.append(CROCKFORD.charAt(number.shiftRight(at).intValue() & 31));
        return id.toString();
    }

    /** The name that keys.bucket(count, algorithm, text, prefix) makes. */
    public static String bucket(int count, String algorithm, String prefix, String text)
            throws GeneralSecurityException {
        byte[] data = text.getBytes(StandardCharsets.UTF_8);
        CRC32 crc = new CRC32();
        crc.update(data);
        long hash = ByteBuffer.wrap(MessageDigest.getInstance("SHA-256").digest(data)).getLong();
        long number = Long.remainderUnsigned(algorithm.equals("crc32") ? crc.getValue() : hash, count);
        return prefix + String.format("%0" + Math.max(3, String.valueOf(count - 1).length()) + "d", number);
    }

    /** What keys.inverted_ticks makes of a UTC moment, 2024-03-05T10:20:30.1234567Z. */
    public static String invertedTicks(String moment) {
        Instant at = OffsetDateTime.parse(moment).toInstant();
        long ticks = (at.getEpochSecond() + 62135596800L) * 10000000 + at.getNano() / 100;
        return String.format("%019d", 3155378975999999999L - ticks);
    }
}
