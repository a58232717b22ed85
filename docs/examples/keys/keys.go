// Package main has keys as rekey makes them: opaque ids, buckets, inverted ticks. Standard library alone.
package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"
	"time"
)

var crockford = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz")

// Opaque returns the id that keys.opaque(*parts, domain=domain, secret=...) makes.
func Opaque(secret []byte, domain string, parts ...string) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("rekey/v1\x00" + domain + "\x00"))
	for _, part := range parts {
		if len(parts) > 1 {
			mac.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part))))
		}
		mac.Write([]byte(part))
	}
	return crockford.EncodeToString(mac.Sum(nil)[:20])
}

// Bucket returns the name that keys.bucket(count, algorithm, text, prefix) makes.
func Bucket(count uint64, algorithm, prefix, text string) string {
	hash := sha256.Sum256([]byte(text))
	number := binary.BigEndian.Uint64(hash[:8])
	if algorithm == "crc32" {
		number = uint64(crc32.ChecksumIEEE([]byte(text)))
	}
	width := max(3, len(strconv.FormatUint(count-1, 10)))
	return fmt.Sprintf("%s%0*d", prefix, width, number%count)
}

// InvertedTicks returns what keys.inverted_ticks makes of a UTC moment, 2024-03-05T10:20:30.1234567Z.
func InvertedTicks(moment string) (string, error) {
	at, err := time.Parse(time.RFC3339Nano, moment)
	ticks := (at.Unix()+62135596800)*10000000 + int64(at.Nanosecond()/100)
	return fmt.Sprintf("%019d", 3155378975999999999-ticks), err
}
