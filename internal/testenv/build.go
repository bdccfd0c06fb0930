package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// Build builds a program of bctl's module, or of a module in its go.mod, and
// returns its path. If the tests are built with the race detector, so is the program: the packages
// of both are then compiled once.
//
// The program remains when the test binary ends. The next build replaces it only if its source has
// changed. flags are further flags of go build.
func Build(name, pkg string, flags ...string) (program string, err error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	flags = append([]string{"build", "-buildvcs=false"}, flags...)
	if Race {
		name, flags = name+"-race", append(flags, "-race")
	}
	directory := filepath.Join(cache, "bctl-tools", "e2e")
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(directory, name+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	program = filepath.Join(directory, name)
	command := exec.Command("go", append(flags, "-o", program, pkg)...)
	command.Dir = root
	if output, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w:\n%s", pkg, err, output)
	}
	return program, nil
}
