package config

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A MisplacedError says that a setting has a value that belongs to another one, and to which.
type MisplacedError struct{ text string }

func (e *MisplacedError) Error() string { return e.text }

// scheme is what a URL begins with. A path that begins with "/" or "." has none.
var scheme = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9+.-]+):`)

// A place is a setting that names a directory or a file of this machine, where it is no URL of these kinds.
type place struct {
	kinds []string
	what  string
}

var places = map[string]place{
	"repo":      {nil, "a directory of this machine"},
	"index.url": {[]string{"postgres://", "postgresql://", "sqlite:"}, "an index"},
	"store.url": {[]string{"s3://", "file://"}, "a store"},
}

// local reports whether what follows a URL of this kind is a path.
func (place) local(kind string) bool { return kind == "sqlite:" || kind == "file://" }

// checkPlace fails where a place is a URL of another kind: a directory of that name would be
// made. It does not repeat the URL, which may hold a password.
func checkPlace(key, text string) error {
	place, is := places[key]
	found := scheme.FindStringSubmatch(text)
	if !is || found == nil || slices.ContainsFunc(place.kinds, func(kind string) bool { return strings.HasPrefix(text, kind) }) {
		return nil
	}
	meant := "bctl keeps packs in a directory, or in S3 (--store s3://BUCKET/PREFIX), and its index in a file or Postgres (--index)"
	switch strings.ToLower(found[1]) {
	case "s3":
		meant = "give it as --store s3://…, with --index and --worker-key, or with --repo DIR for both"
	case "postgres", "postgresql":
		meant = "give it as --index postgres://…"
	case "sqlite":
		meant = "give it as --index FILE"
	case "nats", "tls", "ws", "wss":
		meant = "give it as --nats " + found[1] + "://…"
	case "file":
		meant = "give the path alone"
	}
	return &MisplacedError{fmt.Sprintf("a URL of this kind (%s:…) is not %s: %s", found[1], place.what, meant)}
}

// path splits the value of a setting that names a file or a directory of this machine into what is before the path, and the
// path. ok is false where the value, or the setting, names none.
func (s *Setting) path(text string) (prefix, path string, ok bool) {
	place, isPlace := places[s.Key]
	switch {
	case text == "":
		return "", "", false
	case strings.HasSuffix(s.Key, "_file"), s.Key == "worker_key", s.Key == "committer_key", s.Key == "identity":
		return "", text, true
	case !isPlace:
		return "", "", false
	}
	for _, kind := range place.kinds {
		rest, is := strings.CutPrefix(text, kind)
		switch {
		case is && !place.local(kind):
			return "", "", false
		case is:
			return kind, rest, true
		}
	}
	return "", text, true
}

// locate makes a path that begins with "~/" begin with the home directory, and one that is relative begin
// with dir; "" is the working directory. What is no path stays as it is.
func (s *Setting) locate(text, dir string, env func(string) (string, bool)) (string, error) {
	prefix, path, ok := s.path(text)
	if !ok {
		return text, nil
	}
	path, err := ExpandHome(path, env)
	if err != nil {
		return "", err
	}
	if dir != "" && !filepath.IsAbs(path) && scheme.FindString(path) == "" { // checkPlace tells of those that have one
		path = filepath.Join(dir, path)
	}
	return prefix + path, nil
}

// ExpandHome makes a path that begins with "~/" begin with the home directory. Who writes it into a file, or into
// the environment of a service, has no shell that does.
func ExpandHome(path string, env func(string) (string, bool)) (string, error) {
	if !strings.HasPrefix(path, "~") {
		return path, nil
	}
	rest, mine := strings.CutPrefix(path, "~/")
	if !mine && path != "~" {
		return "", fmt.Errorf("%q: of home directories only your own has a short form (~/); for a directory of this name write ./%s", path, path)
	}
	home, _ := env("HOME")
	if !filepath.IsAbs(home) {
		return "", fmt.Errorf("%q: there is no home directory (HOME is not set)", path)
	}
	if !mine {
		return home, nil
	}
	return filepath.Join(home, rest), nil
}
