package s3store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

func TestParseURL(t *testing.T) {
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	usual := Options{
		Endpoint: DefaultEndpoint, Bucket: "backups", Region: DefaultRegion,
		RetryFor: DefaultRetryFor, StallTimeout: DefaultStallTimeout, ResponseTimeout: DefaultResponseTimeout,
	}
	for url, change := range map[string]func(*Options){
		"s3://backups":                         func(*Options) {},
		"s3://backups/":                        func(*Options) {},
		"s3://backups/site/a/":                 func(o *Options) { o.Prefix = "site/a" },
		"s3://backups?endpoint=minio:9000":     func(o *Options) { o.Endpoint = "https://minio:9000" },
		"s3://backups?endpoint=http://[::1]:9": func(o *Options) { o.Endpoint = "http://[::1]:9" },
		"s3://backups?endpoint=https://s3.example.com/&region=eu-1&path_style=true": func(o *Options) {
			o.Endpoint, o.Region, o.Addressing = "https://s3.example.com", "eu-1", AddressingPath
		},
		"s3://backups?path_style=false": func(o *Options) { o.Addressing = AddressingHost },
		"s3://backups?insecure=true&ca=/etc/ca.pem&cert=/c.pem&key=/k.pem": func(o *Options) {
			o.Insecure, o.CAFile, o.ClientCertFile, o.ClientKeyFile = true, "/etc/ca.pem", "/c.pem", "/k.pem"
		},
		"s3://backups?credentials=/etc/bctl/s3&profile=writer&retry=90s&instance_role=1": func(o *Options) {
			o.CredentialsFile, o.Profile, o.RetryFor, o.InstanceRole = "/etc/bctl/s3", "writer", 90*time.Second, true
		},
	} {
		want := usual
		change(&want)
		got, err := ParseURL(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
		} else if fmt.Sprintf("%#v", withoutMethods(got)) != fmt.Sprintf("%#v", withoutMethods(want)) {
			t.Errorf("%s:\ngot  %#v\nwant %#v", url, withoutMethods(got), withoutMethods(want))
		}
	}
}

type plainOptions Options

func withoutMethods(o Options) plainOptions { return plainOptions(o) }

func TestParseURLRefuses(t *testing.T) {
	for _, url := range []string{
		"", "backups", "http://backups", "s3:backups", "s3://", "s3:///prefix", "s3://ab", "s3://a..b",
		"s3://SECRET:SECRET@backups", "s3://backups:9000", "s3://backups#SECRET", "s3://backups/../x",
		"s3://backups/a b", "s3://backups/x\x00", "s3://back%2fups",
		"s3://backups?secret_key=SECRET", "s3://backups?region=a&region=SECRET", "s3://backups?region=",
		"s3://backups?endpoint=ftp://h", "s3://backups?endpoint=http://SECRET:SECRET@h", "s3://backups?endpoint=http://h/SECRET",
		"s3://backups?endpoint=http://h?SECRET", "s3://backups?endpoint=http://", "s3://backups?endpoint=http://h:SECRET",
		"s3://backups?path_style=SECRET", "s3://backups?retry=SECRET", "s3://backups?cert=/c.pem", "s3://backups?%zz=SECRET", "s3://%zz",
	} {
		_, err := ParseURL(url)
		if !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%s: %v", url, err)
		} else if strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: the error repeats it: %v", url, err)
		}
	}
}

func FuzzParseURL(f *testing.F) {
	f.Add("s3://backups/prefix?endpoint=https://host:9000&region=r&path_style=true&insecure=false&retry=10m")
	f.Add("s3://a:b@c/d?e=f#g")
	f.Fuzz(func(t *testing.T, url string) {
		o, err := ParseURL(url)
		if err != nil {
			if !errors.Is(err, backup.ErrInvalid) {
				t.Errorf("%q: %v", url, err)
			}
			return
		}
		if again, err := o.complete(); err != nil || again.String() != o.String() {
			t.Errorf("%q is accepted as %v, which is not: %v, %v", url, o, again, err)
		}
		if o.Prefix != "" && store.CheckName(o.Prefix) != nil || strings.Contains(o.Endpoint, "@") || o.SecretKey != "" {
			t.Errorf("%q is accepted as %#v", url, withoutMethods(o))
		}
	})
}

func FuzzParseContentRange(f *testing.F) {
	f.Add("bytes 0-9/10")
	f.Add("bytes 0--1/0")
	f.Add("bytes */10")
	f.Fuzz(func(t *testing.T, s string) {
		first, last, size, err := parseContentRange(s)
		if err == nil && (first < 0 || last < first || size <= last) {
			t.Errorf("%q: %d %d %d", s, first, last, size)
		}
	})
}

func TestOptionsPrintNoSecret(t *testing.T) {
	o := Options{Endpoint: "http://h", Bucket: "backups", AccessKey: "KEY", SecretKey: "SECRET", SessionToken: "SECRET"}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if got := fmt.Sprintf(format, o); strings.Contains(got, "SECRET") {
			t.Errorf("%s shows %s", format, got)
		}
		if got := fmt.Sprintf(format, &o); strings.Contains(got, "SECRET") {
			t.Errorf("%s of a pointer shows %s", format, got)
		}
	}
}

func TestCredentials(t *testing.T) {
	home := t.TempDir()
	file := filepath.Join(home, "credentials")
	err := os.WriteFile(file, []byte("[default]\naws_access_key_id = file\naws_secret_access_key = s\n"+
		"[writer]\naws_access_key_id = writer\naws_secret_access_key = s\n"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	own := map[string]string{"BCTL_S3_ACCESS_KEY_ID": "own", "BCTL_S3_SECRET_ACCESS_KEY": "s"}
	aws := map[string]string{"AWS_ACCESS_KEY_ID": "aws", "AWS_SECRET_ACCESS_KEY": "s"}
	for name, c := range map[string]struct {
		options     Options
		environment []map[string]string
		want        string
	}{
		"explicit":              {Options{AccessKey: "explicit", SecretKey: "s", CredentialsFile: file}, []map[string]string{own}, "explicit"},
		"file":                  {Options{CredentialsFile: file}, []map[string]string{own, aws}, "file"},
		"profile":               {Options{CredentialsFile: file, Profile: "writer"}, nil, "writer"},
		"own environment":       {Options{}, []map[string]string{own, aws}, "own"},
		"environment":           {Options{}, []map[string]string{aws}, "aws"},
		"shared file":           {Options{}, []map[string]string{{"AWS_SHARED_CREDENTIALS_FILE": file}}, "file"},
		"nothing":               {Options{}, nil, ""},
		"file that is not":      {Options{CredentialsFile: file + "x"}, []map[string]string{aws}, ""},
		"profile that is not":   {Options{CredentialsFile: file, Profile: "x"}, nil, ""},
		"half of a pair":        {Options{AccessKey: "half"}, []map[string]string{aws}, ""},
		"certificate that's no": {Options{AccessKey: "a", SecretKey: "s", CAFile: file}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for _, variable := range []string{
				"BCTL_S3_ACCESS_KEY_ID", "BCTL_S3_SECRET_ACCESS_KEY", "BCTL_S3_SESSION_TOKEN",
				"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY", "AWS_SECRET_KEY", "AWS_SESSION_TOKEN",
				"AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE",
				"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
			} {
				t.Setenv(variable, "")
			}
			t.Setenv("HOME", filepath.Join(home, "empty"))
			for _, variables := range c.environment {
				for variable, value := range variables {
					t.Setenv(variable, value)
				}
			}
			c.options.Bucket = "backups"
			s, err := Open(t.Context(), c.options)
			if c.want == "" {
				if !errors.Is(err, backup.ErrInvalid) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if value, err := s.core.GetCreds(); err != nil || value.AccessKeyID != c.want {
				t.Errorf("got %q, %v", value.AccessKeyID, err)
			}
		})
	}
}
