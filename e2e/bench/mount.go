//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// A mount is a file system in a sparse file, made for a measurement.
type mount struct {
	dir   string // where it is mounted
	image string
}

// mountNew makes a file system of at most this size in dir/image, and mounts it at dir/mnt. It
// requires root. The image is read and written directly, so that its blocks are not cached twice.
func mountNew(dir string, gigabytes int64, mkfs []string, options string) (*mount, error) {
	m := &mount{dir: filepath.Join(dir, "mnt"), image: filepath.Join(dir, "image")}
	if err := os.MkdirAll(m.dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.Create(m.image)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(f.Truncate(gigabytes<<30), f.Close()); err != nil {
		return nil, err
	}
	if _, err := output(mkfs[0], append(mkfs[1:], m.image)...); err != nil {
		return nil, err
	}
	device, err := output("losetup", "--find", "--show", "--direct-io=on", m.image)
	if err != nil {
		return nil, err
	}
	_, err = output("mount", "-o", options, device, m.dir)
	if _, detach := output("losetup", "--detach", device); err == nil { // the device stays until the unmount
		err = detach
	}
	return m, err
}

// close unmounts the file system and removes the image.
func (m *mount) close() error {
	_, err := output("umount", m.dir)
	if err != nil { // a tool that was stopped may still use it
		_, err = output("umount", "--lazy", m.dir)
	}
	return errors.Join(err, os.Remove(m.image))
}

// output runs a command, and returns what it prints.
func output(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return string(bytes.TrimSpace(out)), nil
}
