//go:build linux

// Command slowfs shows a directory as a slow filer would, until it is told to stop.
//
//	go run -C e2e ./slowfs/cmd -stat 2ms -parallel 8 DIR MOUNTPOINT
//
// It reads orders from standard input, one per line, and answers each of them with one line: "ok",
// an error, or, for "counters", a JSON object.
//
//	stat 5ms                     open, read and list likewise
//	parallel 4
//	hang [PATH]                  nothing at PATH or below it is answered
//	resume
//	snapshot add NAME DIR        .snapshot/NAME shows DIR
//	snapshot rename FROM TO
//	snapshot remove NAME
//	counters
//
// SIGINT and SIGTERM unmount it; the end of standard input does not.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/e2e/slowfs"
)

func main() {
	var o slowfs.Options
	flag.DurationVar(&o.Latency.Stat, "stat", 0, "`latency` of a stat")
	flag.DurationVar(&o.Latency.Open, "open", 0, "`latency` of opening a file")
	flag.DurationVar(&o.Latency.Read, "read", 0, "`latency` of a read")
	flag.DurationVar(&o.Latency.List, "list", 0, "`latency` of a page of a directory")
	flag.IntVar(&o.Parallel, "parallel", 0, "`requests` served at a time (default: any number)")
	flag.DurationVar(&o.AttrTimeout, "attr-timeout", 0, "how long the kernel may keep attributes")
	flag.BoolVar(&o.Xattrs, "xattrs", false, "pass extended attributes on")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: slowfs [flags] DIR MOUNTPOINT")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 2 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(flag.Arg(0), flag.Arg(1), o); err != nil {
		fmt.Fprintln(os.Stderr, "slowfs:", err)
		os.Exit(1)
	}
}

func run(dir, mountpoint string, o slowfs.Options) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	f, err := slowfs.Start(dir, mountpoint, o)
	if err != nil {
		return err
	}
	go func() { // ends with the process
		c := controls{f, o.Latency}
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			if answer, err := c.do(strings.Fields(lines.Text())); err != nil {
				fmt.Println(err)
			} else {
				fmt.Println(answer)
			}
		}
	}()
	<-ctx.Done()
	return f.Close()
}

type controls struct {
	*slowfs.FS
	latency slowfs.Latency
}

// do carries one order out.
func (c *controls) do(words []string) (answer string, err error) {
	order, rest := "", words
	if len(words) > 0 {
		order, rest = words[0], words[1:]
	}
	if order == "snapshot" && len(rest) > 0 {
		order, rest = "snapshot "+rest[0], rest[1:]
	}
	rest = append(rest[:len(rest):len(rest)], "", "")
	switch order {
	case "stat", "open", "read", "list":
		err = c.setLatency(order, rest[0])
	case "parallel":
		var n int
		if n, err = strconv.Atoi(rest[0]); err == nil {
			c.SetParallel(max(n, 0))
		}
	case "hang":
		c.Hang(rest[0])
	case "resume":
		c.Resume()
	case "snapshot add":
		err = c.AddSnapshot(rest[0], rest[1])
	case "snapshot rename":
		err = c.RenameSnapshot(rest[0], rest[1])
	case "snapshot remove":
		err = c.RemoveSnapshot(rest[0])
	case "counters":
		text, err := json.Marshal(c.Counters())
		return string(text), err
	default:
		err = fmt.Errorf("%q is no order", strings.Join(words, " "))
	}
	return "ok", err
}

func (c *controls) setLatency(of, text string) error {
	d, err := time.ParseDuration(text)
	if err != nil {
		return err
	}
	*map[string]*time.Duration{
		"stat": &c.latency.Stat, "open": &c.latency.Open, "read": &c.latency.Read, "list": &c.latency.List,
	}[of] = d
	c.SetLatency(c.latency)
	return nil
}
