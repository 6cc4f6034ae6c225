// Publish the lines of standard input with Relink:
//
//	go run . 127.0.0.1:7733 STREAM [LINES-PER-TRANSACTION]
//
// The exit status is 0 when all of them are on the server's disk, each once.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
)

func main() {
	per := 0 // lines per transaction; 0: no transactions
	if len(os.Args) > 3 {
		per, _ = strconv.Atoi(os.Args[3])
	}
	publisher, outcomes := Dial(os.Args[1], os.Args[2], per > 0), make(chan (<-chan error), window)
	go func() {
		var batch [][]byte
		lines := bufio.NewScanner(os.Stdin)
		lines.Buffer(nil, 16<<20) // the largest message of a server
		for lines.Scan() {
			if batch = append(batch, append([]byte{}, lines.Bytes()...)); len(batch) >= per {
				outcomes <- publisher.Publish(batch...)
				batch = nil
			}
		}
		if len(batch) > 0 {
			outcomes <- publisher.Publish(batch...)
		}
		reading := make(chan error, 1)
		reading <- lines.Err()
		outcomes <- reading
		close(outcomes)
	}()
	status := 0
	for outcome := range outcomes {
		if err := <-outcome; err != nil {
			fmt.Fprintln(os.Stderr, err)
			status = 1
		}
	}
	publisher.Close()
	os.Exit(status)
}
