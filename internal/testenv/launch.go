package testenv

import "fmt"

// Launch is Start for a program that is no test. Its output is added to the file logPath. It dies
// with this program. Before that, the caller must Kill or Stop it. Restart is for tests
// only.
func Launch(command Command, logPath string) (*Process, error) { return start(command, logPath) }

// Program returns where nats-server, versitygw or minio is, after building it if it has to.
func Program(name string) (string, error) {
	for _, p := range []program{natsServer, versitygw, minioBin} {
		if p.name == name {
			return p.find()
		}
	}
	return "", fmt.Errorf("no server is called %s", name)
}
