package main

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// main prints one key for each line of its input: a function and its arguments, as hex with commas.
func main() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var texts []string
		for _, field := range strings.Split(lines.Text(), ",") {
			value, err := hex.DecodeString(field)
			if err != nil {
				panic(err)
			}
			texts = append(texts, string(value))
		}
		switch texts[0] {
		case "opaque":
			fmt.Println(Opaque([]byte(texts[1]), texts[2], texts[3:]...))
		case "bucket":
			count, err := strconv.ParseUint(texts[1], 10, 64)
			if err != nil {
				panic(err)
			}
			fmt.Println(Bucket(count, texts[2], texts[3], texts[4]))
		default:
			key, err := InvertedTicks(texts[1])
			if err != nil {
				panic(err)
			}
			fmt.Println(key)
		}
	}
}
