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
	dir    string // where it is mounted
	image  string
	device string
}

// mountNew makes a file system of at most this size in dir (in dir/image, mounted at dir/mnt). It takes root.
// Its blocks are not cached twice: the image is read and written directly.
func mountNew(dir string, gigabytes int64, mkfs []string, options string) (m *mount, err error) {
	m = &mount{dir: filepath.Join(dir, "mnt"), image: filepath.Join(dir, "image")}
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
	if m.device, err = output("losetup", "--find", "--show", "--direct-io=on", m.image); err != nil {
		return nil, err
	}
	if _, err := output("mount", "-o", options, m.device, m.dir); err != nil {
		_, detach := output("losetup", "--detach", m.device)
		return nil, errors.Join(err, detach)
	}
	return m, nil
}

// close unmounts and removes it.
func (m *mount) close() error {
	if _, err := output("umount", m.dir); err != nil {
		return err
	}
	_, err := output("losetup", "--detach", m.device)
	return errors.Join(err, os.Remove(m.image))
}

// output runs a command, and returns what it prints.
func output(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return string(bytes.TrimSpace(out)), nil
}
