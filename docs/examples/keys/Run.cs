using System;
using System.Globalization;
using System.Linq;
using System.Text;

/// <summary>Prints one key for each line of its input: a function and its arguments, as hex with commas.</summary>
public static class Run
{
    public static void Main()
    {
        while (Console.ReadLine() is { } line)
        {
            var fields = line.Split(',').Select(one => Convert.FromHexString(one)).ToArray();
            var texts = fields.Select(one => Encoding.UTF8.GetString(one)).ToArray();
            Console.WriteLine(texts[0] switch
            {
                "opaque" => Keys.Opaque(fields[1], texts[2], texts[3..]),
                "bucket" => Keys.Bucket(int.Parse(texts[1], CultureInfo.InvariantCulture), texts[2], texts[3], texts[4]),
                _ => Keys.InvertedTicks(DateTimeOffset.Parse(texts[1], CultureInfo.InvariantCulture)),
            });
        }
    }
}
