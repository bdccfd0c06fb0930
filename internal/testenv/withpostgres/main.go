// Command withpostgres runs a command with TEST_POSTGRES_DSN naming a private Postgres server,
// which it removes when the command ends. All test binaries of a run then share one server. If
// TEST_POSTGRES_DSN is set already, it is not changed.
//
//	go run ./internal/testenv/withpostgres go test ./...
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/bctl/bctl/internal/testenv"
)

func main() {
	status, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "withpostgres:", err)
	}
	os.Exit(status)
}

func run(arguments []string) (status int, err error) {
	if len(arguments) == 0 {
		return 2, errors.New("usage: withpostgres COMMAND [ARGUMENT…]")
	}
	// An interrupt ends the command, and then this process: the server must not outlive the run.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	if os.Getenv("TEST_POSTGRES_DSN") == "" {
		cluster, err := testenv.OpenCluster(testenv.Fast)
		if err != nil {
			return 1, err
		}
		defer func() {
			if closeErr := cluster.Close(); closeErr != nil && err == nil {
				status, err = 1, closeErr
			}
		}()
		if err := os.Setenv("TEST_POSTGRES_DSN", cluster.DSN()); err != nil {
			return 1, err
		}
	}
	command := exec.CommandContext(ctx, arguments[0], arguments[1:]...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	err = command.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil // the command has said why
	}
	if err != nil {
		return 1, err
	}
	return 0, nil
}
