package testenv

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// requireGanesha is the variable that fails tests instead of skipping them.
const requireGanesha = "BCTL_REQUIRE_GANESHA"

// An NFSServer is an nfs-ganesha that serves NFS version 3 over TCP, on 127.0.0.1.
type NFSServer struct {
	*Process
	Port, MountPort int
}

// ganeshaConfig exports one directory. Attributes are not cached, because tests change files beside
// the server.
const ganeshaConfig = `
NFS_CORE_PARAM { NFS_Port = %[2]d; MNT_Port = %[3]d; Bind_addr = 127.0.0.1; Protocols = 3;
  Enable_UDP = false; Enable_NLM = false; Enable_RQUOTA = false;
  Plugins_Dir = %[4]q; mount_path_pseudo = false; }
NFSv4 { RecoveryBackend = fs; RecoveryRoot = %[5]q; Graceless = true; }
MDCACHE { Entries_HWMark = 500000; }
EXPORT { Export_Id = 1; Path = %[1]q; Pseudo = /export; Protocols = 3; Transports = TCP; SecType = sys;
  Access_Type = RW; Squash = No_Root_Squash; PrivilegedPort = false; Attr_Expiration_Time = 0; FSAL { Name = VFS; } }
LOG { Default_Log_Level = EVENT; }
`

// ganeshaScript runs it in a mount namespace with a /run of its own: it demands a port mapper
// there.
const ganeshaScript = `mount -t tmpfs tmpfs /run && ln -s "$1" /run/rpcbind.sock && exec ganesha.nfsd -F -f "$2" -L STDERR -p "$3"`

// Ganesha exports a directory, which must be on a file system with handles (ext4, xfs, tmpfs).
// Where that is impossible, the test is skipped, or fails with BCTL_REQUIRE_GANESHA=1.
func Ganesha(t testing.TB, export string) *NFSServer {
	t.Helper()
	skipIfShort(t)
	if why := ganeshaLacks(export); why != "" {
		if os.Getenv(requireGanesha) != "" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	dir, err := os.MkdirTemp("", "ganesha-") //nolint:usetesting // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &NFSServer{}
	for _, port := range []*int{&s.Port, &s.MountPort} {
		if *port, err = FreePort(); err != nil {
			t.Fatal(err)
		}
	}
	socket, config, recovery := filepath.Join(dir, "rpcbind"), filepath.Join(dir, "config"), filepath.Join(dir, "recovery")
	plugins, _ := filepath.Glob("/usr/lib/*/ganesha")
	text := fmt.Sprintf(ganeshaConfig, export, s.Port, s.MountPort, plugins[0], recovery)
	for _, err := range []error{
		os.WriteFile(config, []byte(text), 0o600), os.MkdirAll(filepath.Join(recovery, "v4recov"), 0o700), os.MkdirAll(filepath.Join(recovery, "v4old"), 0o700),
		servePortmap(t, socket),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s.Process = Start(t, Command{
		Name:  "nfs-ganesha",
		Path:  "unshare",
		Args:  []string{"--mount", "--propagation", "slave", "sh", "-c", ganeshaScript, "sh", socket, config, filepath.Join(dir, "pid")},
		Ready: TCPReady(fmt.Sprintf("127.0.0.1:%d", s.Port)),
	})
	return s
}

// ganeshaLacks returns why nfs-ganesha cannot export a directory here.
func ganeshaLacks(export string) string {
	if _, err := exec.LookPath("ganesha.nfsd"); err != nil {
		return "nfs-ganesha is not installed (Debian: nfs-ganesha nfs-ganesha-vfs)"
	}
	if plugins, _ := filepath.Glob("/usr/lib/*/ganesha/libfsalvfs.so"); len(plugins) == 0 {
		return "nfs-ganesha cannot export local directories (Debian: nfs-ganesha-vfs)"
	}
	if !MayMount() {
		return "nfs-ganesha needs root, and the right to mount"
	}
	if _, _, err := unix.NameToHandleAt(unix.AT_FDCWD, export, 0); err != nil {
		return fmt.Sprintf("nfs-ganesha cannot export %s: its file system has no handles: %v", export, err)
	}
	return ""
}

// servePortmap is a port mapper at a socket that agrees to everything.
func servePortmap(t testing.TB, socket string) error {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go agree(c)
		}
	}()
	return nil
}

// agree answers each call with success and TRUE.
func agree(c net.Conn) {
	defer c.Close()
	from := bufio.NewReader(c)
	for {
		var mark [4]byte
		if _, err := io.ReadFull(from, mark[:]); err != nil {
			return
		}
		call := make([]byte, binary.BigEndian.Uint32(mark[:])&0xffff)
		if _, err := io.ReadFull(from, call); err != nil || len(call) < 4 {
			return
		}
		answer := make([]byte, 32)
		binary.BigEndian.PutUint32(answer, 28|1<<31)
		copy(answer[4:], call[:4])
		answer[11], answer[31] = 1, 1
		if _, err := c.Write(answer); err != nil {
			return
		}
	}
}
