//go:build linux

package nfs

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/nfs3"
	"github.com/bctl/bctl/internal/nfs3/rpc"
)

// Scheme is the scheme of the URLs that this source opens.
const Scheme = "nfs"

// The options in the query of a URL.
const (
	optMountPort   = "mountport"
	optConnections = "connections"
	optUID         = "uid"
	optGID         = "gid"
	optGroups      = "groups"
	optReserved    = "reserved"
	optTimeout     = "timeout"
	optRetry       = "retry"
)

// defaultConnections is the number of connections to a server.
const defaultConnections = 2

// An address is a parsed URL: nfs://host[:port]/path[?options].
type address struct {
	server  nfs3.Server
	options rpc.Options
	path    string
	key     string // of the connections that it uses
}

// parse parses a URL without a source snapshot. Its error wraps backup.ErrInvalid.
func parse(rawURL string) (a address, err error) {
	bad := func(format string, args ...any) (address, error) {
		return address{}, fmt.Errorf("source %q: %s: %w", rawURL, fmt.Sprintf(format, args...), backup.ErrInvalid)
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		return bad("%v", errors.Unwrap(err))
	}
	if u.Scheme != Scheme || u.Hostname() == "" || !strings.HasPrefix(u.Path, "/") || u.Fragment != "" || u.User != nil || u.ForceQuery {
		return bad("want nfs://host/path")
	}
	if strings.IndexByte(u.Path, 0) >= 0 {
		return bad("a path has no NUL")
	}
	a.server.Host, a.path = u.Hostname(), path.Clean(u.Path)
	if a.server.NFSPort, err = parsePort(u.Port()); err != nil {
		return bad("port: %v", err)
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return bad("%v", err)
	}
	if err := a.parseOptions(query); err != nil {
		return bad("%v", err)
	}
	a.key = u.Host + "?" + query.Encode()
	return a, nil
}

func parsePort(text string) (uint16, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%q is not 0 to 65535", text)
	}
	return uint16(n), nil
}

// credentials are those of a URL, by default those of this process.
type credentials struct {
	uid, gid uint32
	groups   []uint32
}

func own() credentials {
	c := credentials{uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())}
	groups, err := os.Getgroups()
	if err != nil {
		return c
	}
	const maxGroups = 16 // of the protocol
	for _, g := range groups[:min(len(groups), maxGroups)] {
		c.groups = append(c.groups, uint32(g))
	}
	return c
}

func (a *address) parseOptions(query url.Values) (err error) {
	who := own()
	a.options = rpc.Options{Connections: defaultConnections, From: rpc.PreferReserved}
	for name, values := range query {
		value := values[0]
		if len(values) > 1 {
			return fmt.Errorf("the option %s is there twice", name)
		}
		switch name {
		case optMountPort:
			a.server.MountPort, err = parsePort(value)
		case optConnections:
			a.options.Connections, err = strconv.Atoi(value)
			if n := a.options.Connections; err != nil || n < 1 || n > rpc.MaxConnections {
				err = fmt.Errorf("%q is not 1 to %d", value, rpc.MaxConnections)
			}
		case optUID:
			who.uid, err = parseID(value)
		case optGID:
			who.gid, err = parseID(value)
		case optGroups:
			who.groups, err = parseIDs(value)
		case optReserved:
			a.options.From, err = parseReserved(value)
		case optTimeout:
			a.options.Timeout, err = parseDuration(value)
		case optRetry:
			a.options.RetryFor, err = parseDuration(value)
		default:
			return fmt.Errorf("unknown option %q", name)
		}
		if err != nil {
			return fmt.Errorf("the option %s: %w", name, err)
		}
	}
	machine, _ := os.Hostname() // without one, it is empty
	a.options.Credentials, err = rpc.Sys(machine, who.uid, who.gid, who.groups)
	return err
}

func parseReserved(value string) (rpc.Ports, error) {
	switch value {
	case "auto":
		return rpc.PreferReserved, nil
	case "yes":
		return rpc.RequireReserved, nil
	case "no":
		return rpc.AnyPort, nil
	}
	return 0, fmt.Errorf("%q is not auto, yes or no", value)
}

func parseDuration(value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err == nil && d <= 0 {
		err = errors.New("want a time above 0, such as 15s")
	}
	return d, err
}

func parseID(value string) (uint32, error) {
	n, err := strconv.ParseUint(value, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number of 32 bits", value)
	}
	return uint32(n), nil
}

func parseIDs(value string) (ids []uint32, err error) {
	if value == "" {
		return nil, nil
	}
	for text := range strings.SplitSeq(value, ",") {
		id, err := parseID(text)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// Place returns the host of the server, without its port, and the path there that a URL names. The
// error wraps backup.ErrInvalid.
func Place(rawURL string) (host, path string, err error) {
	a, err := parse(rawURL)
	return a.server.Host, a.path, err
}
