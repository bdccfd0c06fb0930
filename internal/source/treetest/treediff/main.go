//go:build linux

// Command treediff compares two trees with all that a backup must bring back.
//
//	treediff [-no-owner] [-no-directory-times] ORIGINAL COPY
//
// It prints a line for each difference. Exit status: 0 equal, 1 different,
// 2 usage.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/bctl/bctl/internal/source/treetest"
)

func main() {
	noOwner := flag.Bool("no-owner", false, "ignore uid and gid")
	noTimes := flag.Bool("no-directory-times", false, "ignore mtimes of directories")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: treediff [-no-owner] [-no-directory-times] ORIGINAL COPY")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 2 {
		flag.Usage()
		os.Exit(2)
	}
	var ignore []treetest.Aspect
	if *noOwner {
		ignore = append(ignore, treetest.Owner)
	}
	if *noTimes {
		ignore = append(ignore, treetest.DirectoryTimes)
	}
	differences := treetest.Compare(flag.Arg(0), flag.Arg(1), ignore...)
	for _, line := range differences {
		fmt.Println(line)
	}
	if len(differences) > 0 {
		os.Exit(1)
	}
}
