package testenv

import "fmt"

// Launch is Start for a caller that is not a test. The output of the process is appended to the
// file logPath. The caller must Kill or Stop the process; it is killed if the caller dies before.
// The caller must not call Restart.
func Launch(command Command, logPath string) (*Process, error) { return start(command, logPath) }

// Program returns the path of nats-server, versitygw or minio. It builds the program if necessary.
func Program(name string) (string, error) {
	for _, p := range []program{natsServer, versitygw, minioBin} {
		if p.name == name {
			return p.find()
		}
	}
	return "", fmt.Errorf("no server is called %s", name)
}
