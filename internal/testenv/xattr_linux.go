package testenv

import "syscall"

// xattrsWork reports whether the file system of the directory keeps user extended attributes (tmpfs
// does not on older kernels).
func xattrsWork(directory string) bool {
	const name = "user.bctl.probe"
	if err := syscall.Setxattr(directory, name, []byte("1"), 0); err != nil {
		return false
	}
	return syscall.Removexattr(directory, name) == nil
}
