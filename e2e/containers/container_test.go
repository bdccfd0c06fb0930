package containers

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	api "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/e2e/fleet"
)

// A container is one of a project.
type container struct {
	*testcontainers.DockerContainer
	project *project
	service string
	number  int
	parted  map[string]*network.EndpointSettings // networks it was taken from
}

func (c *container) String() string { return fmt.Sprintf("%s-%d", c.service, c.number) }

// read returns a file; the container may have ended.
func (c *container) read(t *testing.T, path string) string {
	t.Helper()
	file, err := c.CopyFileFromContainer(t.Context(), path)
	if err != nil {
		t.Fatalf("read %s of %s: %v", path, c, err)
	}
	defer file.Close()
	text, err := io.ReadAll(file)
	if err != nil {
		t.Fatalf("read %s of %s: %v", path, c, err)
	}
	return string(text)
}

// write writes a file into one of the container's volumes; the container may have ended.
func (c *container) write(t *testing.T, path, text string) {
	t.Helper()
	var archive bytes.Buffer
	to := tar.NewWriter(&archive)
	err := to.WriteHeader(&tar.Header{Name: filepath.Base(path), Mode: 0o644, Size: int64(len(text))})
	if err == nil {
		_, err = io.WriteString(to, text)
	}
	if err = errors.Join(err, to.Close()); err == nil {
		o := client.CopyToContainerOptions{DestinationPath: filepath.Dir(path), Content: &archive}
		_, err = c.project.docker.CopyToContainer(t.Context(), c.GetContainerID(), o)
	}
	if err != nil {
		t.Fatalf("write %s of %s: %v", path, c, err)
	}
}

// address returns where a port is at this moment, on one of the project's networks.
func (c *container) address(ctx context.Context, net string, port int) (string, error) {
	seen, err := c.Inspect(ctx)
	if err != nil {
		return "", err
	}
	endpoint := seen.NetworkSettings.Networks[c.project.name+"_"+net]
	if endpoint == nil || !endpoint.IPAddress.IsValid() {
		return "", fmt.Errorf("%s has no address on %s", c, net)
	}
	return fmt.Sprintf("%s:%d", endpoint.IPAddress, port), nil
}

// crash ends the container's process with SIGKILL, as if by itself: its restart policy
// brings it back. Where the process cannot be seen from here, Docker does both.
func (c *container) crash(t *testing.T) {
	t.Helper()
	state, err := c.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cgroup, err := os.ReadFile("/proc/" + strconv.Itoa(state.Pid) + "/cgroup")
	if err != nil || !strings.Contains(string(cgroup), c.GetContainerID()) {
		c.stop(t, 0)
		c.start(t)
		return
	}
	if err := unix.Kill(state.Pid, unix.SIGKILL); err != nil {
		t.Fatalf("kill %s: %v", c, err)
	}
	fleet.Await(t, c.String()+" to be started again", func() bool {
		now, err := c.State(t.Context())
		return err == nil && now.Running && now.Pid != state.Pid
	})
}

func (c *container) signal(t *testing.T, signal string) {
	t.Helper()
	if _, err := c.project.docker.ContainerKill(t.Context(), c.GetContainerID(), client.ContainerKillOptions{Signal: signal}); err != nil {
		t.Fatalf("signal %s: %v", c, err)
	}
}

func (c *container) pause(t *testing.T) {
	t.Helper()
	if _, err := c.project.docker.ContainerPause(t.Context(), c.GetContainerID(), client.ContainerPauseOptions{}); err != nil {
		t.Fatalf("pause %s: %v", c, err)
	}
}

func (c *container) unpause(t *testing.T) {
	t.Helper()
	if _, err := c.project.docker.ContainerUnpause(t.Context(), c.GetContainerID(), client.ContainerUnpauseOptions{}); err != nil {
		t.Fatalf("unpause %s: %v", c, err)
	}
}

// part takes the container from all its networks: nothing reaches it, and nobody is told.
func (c *container) part(t *testing.T) {
	t.Helper()
	seen, err := c.Inspect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.parted = seen.NetworkSettings.Networks
	for name := range c.parted {
		if _, err := c.project.docker.NetworkDisconnect(t.Context(), name, client.NetworkDisconnectOptions{Container: c.GetContainerID(), Force: true}); err != nil {
			t.Fatalf("part %s from %s: %v", c, name, err)
		}
	}
}

// heal ends part. The container may have other addresses than before.
func (c *container) heal(t *testing.T) {
	t.Helper()
	for name, was := range c.parted {
		o := client.NetworkConnectOptions{Container: c.GetContainerID(), EndpointConfig: &network.EndpointSettings{Aliases: was.Aliases}}
		if _, err := c.project.docker.NetworkConnect(t.Context(), name, o); err != nil {
			t.Fatalf("connect %s with %s: %v", c, name, err)
		}
	}
	c.parted = nil
}

// stop tells the container to end as compose does, gives it time, and returns its exit status.
func (c *container) stop(t *testing.T, within time.Duration) int {
	t.Helper()
	seconds := int(within.Seconds())
	if _, err := c.project.docker.ContainerStop(t.Context(), c.GetContainerID(), client.ContainerStopOptions{Timeout: &seconds}); err != nil {
		t.Fatalf("stop %s: %v", c, err)
	}
	state, err := c.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return state.ExitCode
}

func (c *container) start(t *testing.T) {
	t.Helper()
	if _, err := c.project.docker.ContainerStart(t.Context(), c.GetContainerID(), client.ContainerStartOptions{}); err != nil {
		t.Fatalf("start %s: %v", c, err)
	}
}

// throttled reports whether the container was held up by its limit of processor time.
func (c *container) throttled(t *testing.T) bool {
	t.Helper()
	stats, err := c.project.docker.ContainerStats(t.Context(), c.GetContainerID(), client.ContainerStatsOptions{})
	if err != nil {
		t.Fatalf("statistics of %s: %v", c, err)
	}
	defer stats.Body.Close()
	var seen api.StatsResponse
	if err := json.NewDecoder(stats.Body).Decode(&seen); err != nil {
		t.Fatalf("statistics of %s: %v", c, err)
	}
	return seen.CPUStats.ThrottlingData.ThrottledPeriods > 0
}
