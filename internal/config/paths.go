package config

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A MisplacedError reports a setting whose value belongs to another setting, and names that one.
type MisplacedError struct{ text string }

func (e *MisplacedError) Error() string { return e.text }

// scheme matches the beginning of a URL. A path that begins with "/" or "." has none.
var scheme = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9+.-]+):`)

// A localSetting is a setting that names a directory or file on this machine, unless it is a URL of
// one of these kinds.
type localSetting struct {
	kinds []string
	what  string
}

var localSettings = map[string]localSetting{
	"repo":      {nil, "a directory of this machine"},
	"index.url": {[]string{"postgres://", "postgresql://", "sqlite:"}, "an index"},
	"store.url": {[]string{"s3://", "file://"}, "a store"},

	"mirror.url": {[]string{"s3://", "file://"}, "a store"},
}

// local reports whether the rest of a URL of this kind is a path.
func (localSetting) local(kind string) bool { return kind == "sqlite:" || kind == "file://" }

// checkLocal fails if a localSetting is a URL of another kind: otherwise a directory of that name
// would be created. The error does not contain the URL, which may have a password.
func checkLocal(key, text string) error {
	setting, is := localSettings[key]
	found := scheme.FindStringSubmatch(text)
	if !is || found == nil || slices.ContainsFunc(setting.kinds, func(kind string) bool { return strings.HasPrefix(text, kind) }) {
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
	return &MisplacedError{fmt.Sprintf("a URL of this kind (%s:…) is not %s: %s", found[1], setting.what, meant)}
}

// path splits the value of a setting that names a file or directory on this machine into the prefix
// before the path, and the path. ok is false if the value or the setting does not name one.
func (s *Setting) path(text string) (prefix, path string, ok bool) {
	setting, isLocal := localSettings[s.Key]
	switch {
	case text == "":
		return "", "", false
	case strings.HasSuffix(s.Key, "_file"), s.Key == "worker_key", s.Key == "committer_key", s.Key == "identity":
		return "", text, true
	case !isLocal:
		return "", "", false
	}
	for _, kind := range setting.kinds {
		rest, is := strings.CutPrefix(text, kind)
		switch {
		case is && !setting.local(kind):
			return "", "", false
		case is:
			return kind, rest, true
		}
	}
	return "", text, true
}

// locate expands "~/" to the home directory, and joins a relative path to dir; "" is the working
// directory. A value that is not a path is returned unchanged.
func (s *Setting) locate(text, dir string, env func(string) (string, bool)) (string, error) {
	prefix, path, ok := s.path(text)
	if !ok {
		return text, nil
	}
	path, err := ExpandHome(path, env)
	if err != nil {
		return "", err
	}
	if dir != "" && !filepath.IsAbs(path) && scheme.FindString(path) == "" { // checkLocal reports paths with a scheme
		path = filepath.Join(dir, path)
	}
	return prefix + path, nil
}

// ExpandHome expands a leading "~/" to the home directory. No shell does that for a path in a file
// or in the environment of a service.
func ExpandHome(path string, env func(string) (string, bool)) (string, error) {
	if !strings.HasPrefix(path, "~") {
		return path, nil
	}
	rest, mine := strings.CutPrefix(path, "~/")
	if !mine && path != "~" {
		return "", fmt.Errorf("%q: only your own home directory has a short form (~/); write ./%s for a directory of this name", path, path)
	}
	home, _ := env("HOME")
	if !filepath.IsAbs(home) {
		return "", fmt.Errorf("%q: the home directory is unknown (HOME is not set)", path)
	}
	if !mine {
		return home, nil
	}
	return filepath.Join(home, rest), nil
}
