package testenv

import (
	"os/exec"
	"runtime"
	"sync"
)

type spawnRequest struct {
	command *exec.Cmd
	started chan<- error
}

var spawner = sync.OnceValue(func() chan<- spawnRequest {
	requests := make(chan spawnRequest)
	go func() {
		// The kernel sends Pdeathsig when the thread that forked exits, not the process. Any other
		// thread may end early: Go ends one when a goroutine that is locked to it returns, as tests
		// that enter a namespace do. This one is never unlocked and never returns, so it ends with
		// the process.
		runtime.LockOSThread()
		for request := range requests {
			request.started <- request.command.Start()
		}
	}()
	return requests
})

// spawn starts the command from the thread that lives as long as this process.
func spawn(command *exec.Cmd) error {
	started := make(chan error)
	spawner() <- spawnRequest{command, started}
	return <-started
}
