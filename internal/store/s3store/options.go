package s3store

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

// The defaults of Options.
const (
	DefaultEndpoint        = "https://s3.amazonaws.com"
	DefaultRegion          = "us-east-1"
	DefaultRetryFor        = 10 * time.Minute
	DefaultStallTimeout    = time.Minute
	DefaultResponseTimeout = 5 * time.Minute
)

// Addressing selects where a request names the bucket.
type Addressing uint8

// The ways to address a bucket.
const (
	AddressingAuto Addressing = iota // in the host name at Amazon and Google, in the path elsewhere
	AddressingPath                   // https://endpoint/bucket/object
	AddressingHost                   // https://bucket.endpoint/object
)

// Options describe where a store is and how to reach it. Printing them shows no secret.
type Options struct {
	Endpoint   string // http://HOST[:PORT] or https://…, no path; empty: DefaultEndpoint
	Bucket     string
	Prefix     string // within the bucket; empty, or valid for store.CheckName
	Region     string // empty: AWS_REGION, AWS_DEFAULT_REGION, DefaultRegion
	Addressing Addressing

	// Credentials are the first found of: these fields; the file; the environment (BCTL_S3_…, then
	// AWS_ACCESS_KEY_ID …); the files that AWS tools use; the identity of the machine or the
	// container, if InstanceRole or AWS's variables request it.
	AccessKey       string
	SecretKey       string
	SessionToken    string
	CredentialsFile string // in the format of ~/.aws/credentials
	Profile         string // in the file; empty: AWS_PROFILE, "default"
	InstanceRole    bool

	CAFile         string // PEM; if set, the only trusted authorities
	ClientCertFile string // PEM; with ClientKeyFile, read again at each handshake
	ClientKeyFile  string
	Insecure       bool // do not verify the server's certificate

	RetryFor        time.Duration // 0: DefaultRetryFor; negative: one attempt
	StallTimeout    time.Duration // without a byte sent or received; 0: DefaultStallTimeout
	ResponseTimeout time.Duration // from last byte sent to first received; 0: DefaultResponseTimeout

	ObjectLock     store.LockMode // in which new objects are locked; the bucket must allow it
	DeleteVersions bool           // Delete removes all versions of objects, and their delete markers

	// OnRetry, if set, is called before each pause, by the goroutine that waits. It may be called
	// concurrently.
	OnRetry func(Retry)
}

// A Retry describes an attempt that failed and will be repeated.
type Retry struct {
	Store     string // as Store.String
	Op        string // put, get, stat, list, delete, lock
	Name      string // of the object
	Attempt   int    // number of the failed attempt: 1, 2 …
	Kind      error  // the store's error for Err, such as store.ErrFull; nil if Err wraps it
	Err       error
	Pause     time.Duration // until the next attempt
	Remaining time.Duration // until the operation fails
}

// String contains no secret.
func (o Options) String() string {
	s := "s3 " + o.Endpoint + " bucket " + o.Bucket
	if o.Prefix != "" {
		s += " prefix " + o.Prefix
	}
	return s
}

// GoString contains no secret.
func (o Options) GoString() string { return "s3store.Options(" + o.String() + ")" }

// settings are the parameters of a store's URL.
var settings = map[string]func(o *Options, value string) error{
	"endpoint":      func(o *Options, v string) error { o.Endpoint = v; return nil },
	"region":        func(o *Options, v string) error { o.Region = v; return nil },
	"credentials":   func(o *Options, v string) error { o.CredentialsFile = v; return nil },
	"profile":       func(o *Options, v string) error { o.Profile = v; return nil },
	"ca":            func(o *Options, v string) error { o.CAFile = v; return nil },
	"cert":          func(o *Options, v string) error { o.ClientCertFile = v; return nil },
	"key":           func(o *Options, v string) error { o.ClientKeyFile = v; return nil },
	"insecure":      func(o *Options, v string) (err error) { o.Insecure, err = strconv.ParseBool(v); return err },
	"instance_role": func(o *Options, v string) (err error) { o.InstanceRole, err = strconv.ParseBool(v); return err },
	"retry":         func(o *Options, v string) (err error) { o.RetryFor, err = time.ParseDuration(v); return err },
	"path_style": func(o *Options, v string) error {
		path, err := strconv.ParseBool(v)
		o.Addressing = AddressingHost
		if path {
			o.Addressing = AddressingPath
		}
		return err
	},
}

// ParseURL parses the URL of a store:
//
//	s3://BUCKET[/PREFIX][?SETTING=VALUE&…]
//
// The settings are endpoint (http://HOST:PORT or https://…; a bare HOST:PORT is https), region,
// path_style, insecure, instance_role (booleans), ca, cert, key, credentials (files), profile and
// retry (a duration). Keys cannot be part of it, because URLs are shown and logged. Errors wrap
// backup.ErrInvalid, and do not repeat the URL.
func ParseURL(s string) (Options, error) {
	u, err := url.Parse(s)
	if err != nil {
		// The error of url.Parse repeats the URL, which may contain a key by mistake.
		return Options{}, invalid("it cannot be parsed")
	}
	switch {
	case u.Scheme != "s3":
		return Options{}, invalid("it does not begin with s3://")
	case u.User != nil:
		return Options{}, invalid("it must not have credentials: use the environment or a file")
	case u.Opaque != "" || u.Fragment != "" || u.RawFragment != "" || u.Port() != "":
		return Options{}, invalid("its form is s3://BUCKET/PREFIX?endpoint=https://HOST:PORT")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return Options{}, invalid("its settings cannot be parsed")
	}
	o := Options{Bucket: u.Host, Prefix: strings.Trim(u.Path, "/")}
	for name, values := range query {
		set, known := settings[name]
		switch {
		case !known:
			return Options{}, invalid(fmt.Sprintf("there is no setting %q", name))
		case len(values) > 1:
			return Options{}, invalid(fmt.Sprintf("%s is set twice", name))
		case values[0] == "":
			return Options{}, invalid(fmt.Sprintf("%s is empty", name))
		}
		if err := set(&o, values[0]); err != nil {
			return Options{}, invalid(fmt.Sprintf("%s: not a valid value", name))
		}
	}
	return o.complete()
}

func invalid(what string) error { return fmt.Errorf("s3 store URL: %s: %w", what, backup.ErrInvalid) }

// complete fills in the defaults, and validates the options.
func (o Options) complete() (Options, error) {
	o.Endpoint = cmp.Or(o.Endpoint, DefaultEndpoint)
	o.Region = cmp.Or(o.Region, os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"), DefaultRegion)
	o.RetryFor = cmp.Or(o.RetryFor, DefaultRetryFor)
	o.StallTimeout = cmp.Or(o.StallTimeout, DefaultStallTimeout)
	o.ResponseTimeout = cmp.Or(o.ResponseTimeout, DefaultResponseTimeout)
	if !strings.Contains(o.Endpoint, "://") {
		o.Endpoint = "https://" + o.Endpoint
	}
	endpoint, err := checkEndpoint(o.Endpoint)
	if err != nil {
		return Options{}, fmt.Errorf("s3 endpoint: %w: %w", err, backup.ErrInvalid)
	}
	o.Endpoint = endpoint
	if !validBucket(o.Bucket) {
		return Options{}, fmt.Errorf("invalid name of an s3 bucket %q: %w", o.Bucket, backup.ErrInvalid)
	}
	if o.Prefix != "" {
		if err := store.CheckName(o.Prefix); err != nil {
			return Options{}, fmt.Errorf("s3 prefix: %w", err)
		}
	}
	if (o.AccessKey == "") != (o.SecretKey == "") || (o.ClientCertFile == "") != (o.ClientKeyFile == "") {
		return Options{}, fmt.Errorf("s3 options: an access key needs a secret key, and a client certificate its key: %w", backup.ErrInvalid)
	}
	return o, nil
}

// checkEndpoint returns scheme://host[:port]. Its errors do not repeat the endpoint.
func checkEndpoint(s string) (string, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return "", errors.New("it cannot be parsed")
	case u.Scheme != "http" && u.Scheme != "https":
		return "", errors.New("it must begin with http:// or https://")
	case u.User != nil:
		return "", errors.New("it must not have credentials")
	case u.Hostname() == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "", errors.New("it must be a scheme, a host and a port, and no more")
	case net.ParseIP(u.Hostname()) == nil && !validHost(u.Hostname()):
		return "", errors.New("not a valid host name")
	}
	return u.Scheme + "://" + u.Host, nil
}

func validHost(s string) bool {
	return len(s) <= 253 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") == "" &&
		!strings.HasPrefix(s, "-") && !strings.HasPrefix(s, ".")
}

// validBucket is laxer than Amazon's rules, because other servers have their own.
func validBucket(s string) bool {
	return len(s) >= 3 && len(s) <= 63 && !strings.Contains(s, "..") && store.CheckName(s) == nil && !strings.Contains(s, "/")
}
