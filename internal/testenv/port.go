package testenv

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// Below Linux's ephemeral ports (32768 and up): while a server is down, no outgoing connection can
// be given its port, not even that of a client that keeps dialling it, which would then talk to
// itself.
const (
	firstPort = 18000
	lastPort  = 31999
)

// portClaims keeps what it claimed until the process ends: a server may be restarted at any time.
var portClaims struct {
	sync.Mutex
	held []net.Listener
}

// FreePortPair returns a free port p such that p + above is free, too. It claims both.
func FreePortPair(above int) (int, error) {
	for range 50 {
		port, err := FreePort()
		if err != nil {
			return 0, err
		}
		claim, err := net.Listen("unix", fmt.Sprintf("@bctl-testenv-port-%d", port+above))
		if err != nil {
			continue
		}
		portClaims.Lock()
		portClaims.held = append(portClaims.held, claim)
		portClaims.Unlock()
		if probe, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+above)); err == nil {
			return port, probe.Close()
		}
	}
	return 0, errors.New("no free pair of loopback ports")
}

// FreePort returns a loopback TCP port that no other test on this machine is given while this
// process runs.
func FreePort() (int, error) {
	portClaims.Lock()
	defer portClaims.Unlock()
	for range 200 {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		// An abstract socket is a lock that leaves no file behind. It is released if the process is
		// killed.
		claim, err := net.Listen("unix", fmt.Sprintf("@bctl-testenv-port-%d", port))
		if err != nil {
			continue
		}
		probe, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			_ = claim.Close()
			continue
		}
		_ = probe.Close()
		portClaims.held = append(portClaims.held, claim)
		return port, nil
	}
	return 0, errors.New("no free loopback port between 18000 and 31999")
}
