using System;
using System.Buffers.Binary;
using System.Globalization;
using System.Numerics;
using System.Security.Cryptography;
using System.Text;

/// <summary>Keys as rekey makes them: opaque ids, buckets, inverted ticks. .NET 6 or later.</summary>
public static class Keys
{
    private const string Crockford = "0123456789abcdefghjkmnpqrstvwxyz";

    /// <summary>The id that keys.opaque(*parts, domain=domain, secret=...) makes.</summary>
    public static string Opaque(byte[] secret, string domain, params string[] parts)
    {
        using var mac = IncrementalHash.CreateHMAC(HashAlgorithmName.SHA256, secret);
        mac.AppendData(Encoding.UTF8.GetBytes("rekey/v1\0" + domain + "\0"));
        foreach (var part in parts)
        {
            var value = Encoding.UTF8.GetBytes(part);
            var length = new byte[4];
            BinaryPrimitives.WriteInt32BigEndian(length, value.Length);
            if (parts.Length > 1) mac.AppendData(length);
            mac.AppendData(value);
        }
        var number = new BigInteger(mac.GetHashAndReset().AsSpan(0, 20), isUnsigned: true, isBigEndian: true);
        var id = new char[32];
        for (var at = 31; at >= 0; at--, number >>= 5) id[at] = Crockford[(int)(number & 31)];
        return new string(id);
    }

    /// <summary>The name that keys.bucket(count, algorithm, text, prefix) makes.</summary>
    public static string Bucket(int count, string algorithm, string prefix, string text)
    {
        var data = Encoding.UTF8.GetBytes(text);
        var hash = BinaryPrimitives.ReadUInt64BigEndian(SHA256.HashData(data));
        var number = (algorithm == "crc32" ? Crc32(data) : hash) % (ulong)count;
        var width = Math.Max(3, (count - 1).ToString(CultureInfo.InvariantCulture).Length);
        return prefix + number.ToString(CultureInfo.InvariantCulture).PadLeft(width, '0');
    }

    /// <summary>What keys.inverted_ticks makes of a moment.</summary>
    public static string InvertedTicks(DateTimeOffset moment) =>
        (DateTime.MaxValue.Ticks - moment.UtcTicks).ToString("D19", CultureInfo.InvariantCulture);

    private static uint Crc32(byte[] data)
    {
        var crc = uint.MaxValue;
        foreach (var one in data)
        {
            crc ^= one;
            for (var bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ ((crc & 1) == 1 ? 0xedb88320u : 0u);
        }
        return ~crc;
    }
}
