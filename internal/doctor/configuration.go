package doctor

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/installation"
)

func configurationGroup(p *Parts) Group {
	g := Group{Name: "configuration"}
	const read = "configuration.settings"
	g.add(read, func(context.Context) Finding { return settings(p) })
	g.add("configuration.environment", func(context.Context) Finding { return environment(p.Environ) }, read)
	g.add("configuration.files", func(context.Context) Finding { return files(p) }, read)
	g.add("configuration.secrets", func(context.Context) Finding { return secrets(p) }, read)
	g.add("configuration.certificates", func(context.Context) Finding { return certificates(p, time.Now()) }, read)
	return g
}

func settings(p *Parts) Finding {
	switch {
	case p.ConfigError != nil:
		return failWith("correct it; docs/configuration.md lists all settings", p.ConfigError)
	case p.ConfigFile != "":
		return ok("%s is read", p.ConfigFile)
	case p.Config.Repo != "":
		return ok("everything is in %s", p.Config.Repo)
	}
	return ok("from the environment and flags alone")
}

// notSettings are variables of bctl that are not settings. The credentials for S3 have names of
// their own.
var notSettings = []string{"BCTL_CONFIG", "BCTL_S3_ACCESS_KEY_ID", "BCTL_S3_SECRET_ACCESS_KEY", "BCTL_S3_SESSION_TOKEN"}

// environment looks for variables that look like settings but are not, because a misspelt variable
// causes no error.
func environment(environ []string) Finding {
	known := slices.Clone(notSettings)
	for _, s := range config.Settings() {
		known = append(known, s.Env)
	}
	var unknown []string
	set := 0
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		switch {
		case slices.Contains(known, name):
			set++
		case strings.HasPrefix(name, "BCTL_"):
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return warn("correct or remove it", "no setting: %s", strings.Join(unknown, ", "))
	}
	return ok("%s of bctl set", plural(set, "variable"))
}

// A namedFile is a file that a setting names.
type namedFile struct{ key, path string }

// namedFiles returns all files that settings name: the settings called ..._file, and keys.
func namedFiles(c *config.Config) []namedFile {
	return collectFiles(nil, "", reflect.ValueOf(c).Elem())
}

func collectFiles(list []namedFile, prefix string, v reflect.Value) []namedFile {
	for i := range v.NumField() {
		key := prefix + v.Type().Field(i).Tag.Get("yaml")
		switch field := v.Field(i); {
		case field.Kind() == reflect.Struct:
			list = collectFiles(list, key+".", field)
		case field.Kind() == reflect.String && field.String() != "" && (strings.HasSuffix(key, "_file") || key == "worker_key" || key == "committer_key" || key == "identity"):
			list = append(list, namedFile{key, field.String()})
		}
	}
	return list
}

// optional reports whether the role works without the file: only readers seal packs, and only
// operators need identities.
func (f *namedFile) optional(p *Parts) bool {
	return f.key == "worker_key" && !p.is(installation.Reader) || f.key == "committer_key" && !p.is(installation.Committer) || f.key == "identity" && p.Role != installation.Operator
}

func files(p *Parts) Finding {
	var v verdict
	read := 0
	for _, f := range namedFiles(p.Config) {
		file, err := os.Open(f.path)
		switch {
		case errors.Is(err, fs.ErrNotExist) && f.optional(p):
			continue
		case errors.Is(err, fs.ErrNotExist) && f.key == "identity":
			v.add(warn("copy it there before a restore, or before another command that opens content (drill, check and repair with --read-data, key rotate, index catchup)", "identity: %s", oneLine(err)))
			continue
		case errors.Is(err, fs.ErrPermission):
			v.add(fail(fmt.Sprintf("give user %d read permission", os.Getuid()), "%s: no permission to read %s", f.key, f.path))
			continue
		case err != nil:
			v.add(fail("create it, or correct "+f.key, "%s: %s", f.key, oneLine(err)))
			continue
		}
		info, err := file.Stat()
		switch file.Close(); {
		case err != nil:
			v.add(fail("", "%s: %s", f.key, oneLine(err)))
		case info.IsDir():
			v.add(fail("name a file", "%s: %s is a directory", f.key, f.path))
		case info.Size() == 0:
			v.add(fail("replace it", "%s: %s is empty", f.key, f.path))
		default:
			read++
		}
	}
	v.ok("%s named in the settings can be read", plural(read, "file"))
	return v.finding()
}

// secret reports whether a file's content must be kept secret. Certificates are public.
func (f *namedFile) secret() bool {
	return !strings.HasSuffix(f.key, "ca_file") && !strings.HasSuffix(f.key, "cert_file")
}

func secrets(p *Parts) Finding {
	var v verdict
	kept := 0
	list := namedFiles(p.Config)
	list = slices.DeleteFunc(list, func(f namedFile) bool { return !f.secret() })
	if p.ConfigFile != "" && holdsSecret(p.ConfigFile) {
		list = append(list, namedFile{"the configuration, which contains a secret", p.ConfigFile})
	}
	for _, f := range list {
		info, err := os.Stat(f.path)
		if err != nil {
			continue // reported already
		}
		switch mode := info.Mode().Perm(); {
		case mode&0o007 != 0:
			v.add(fail("chmod o= "+f.path, "%s: every user of this machine can read or change %s (mode %04o)", f.key, f.path, mode))
		case mode&0o020 != 0:
			v.add(warn("chmod g-w "+f.path, "%s: a group can change %s (mode %04o)", f.key, f.path, mode))
		default:
			kept++
		}
	}
	v.ok("%s protected from other users", plural(kept, "secret file"))
	return v.finding()
}

// holdsSecret reports whether the configuration file itself contains a secret.
func holdsSecret(file string) bool {
	c, err := config.Load(config.Sources{File: file, Env: func(string) (string, bool) { return "", false }, Read: func(path string) ([]byte, error) {
		if path != file {
			return nil, nil // only the content of the file
		}
		return os.ReadFile(path)
	}})
	if err != nil || c == nil {
		return false
	}
	password := func(url string) bool { return withoutPassword(url) != url }
	return c.Index.Password+c.Store.SecretKey+c.Store.SessionToken+c.NATS.Password != "" || password(c.Index.URL) || slices.ContainsFunc(strings.Split(c.NATS.URL, ","), password)
}

func certificates(p *Parts, now time.Time) Finding {
	var v verdict
	for _, f := range namedFiles(p.Config) {
		if f.secret() {
			continue
		}
		data, err := os.ReadFile(f.path)
		if err != nil {
			continue // reported already
		}
		own := strings.HasSuffix(f.key, "cert_file")
		found := 0
		for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
			if block.Type != "CERTIFICATE" {
				continue
			}
			found++
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				v.add(fail("replace it", "%s: %s", f.key, oneLine(err)))
				continue
			}
			r := certificate(c, now)
			r.Seen = f.key + ": " + r.Seen
			if r.Status == Failure && !own && len(rest) > 0 {
				r.Status = Warning // an expired authority next to its successor
			}
			v.add(r)
			if own {
				break // the rest is its chain
			}
		}
		if found == 0 {
			v.add(fail("replace it", "%s: no certificate is in %s", f.key, f.path))
		}
	}
	if len(v.good)+len(v.bad) == 0 {
		return skip("no settings name certificates")
	}
	return v.finding()
}
