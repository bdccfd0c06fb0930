// Package config reads bctl's settings. Flags take precedence over the environment, and the
// environment over the file.
//
// Each setting has a key ("store.region"), which is its path in the YAML file, and an environment
// variable; some have a flag. The file is strict: unknown keys, duplicate keys and values of the
// wrong type are errors with file and line. A secret can be read from a separate file, which is
// named by the setting of the same name with "_file". Paths in the file are relative to its
// directory, all others to the working directory. "~/" is the home directory.
package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// A Config is the set of all settings. Its tags are the single source for the key (yaml), the
// environment variable (env; without it, BCTL_ and the key in capitals), the flag, the default and
// the description of each setting. docs/configuration.md is generated from them.
type Config struct {
	Repo         string   `yaml:"repo" flag:"repo" doc:"Repository directory, for backups of this machine: SQLite index, directory store, worker key, committer key, locks. The settings index, store, worker_key and committer_key can replace its parts."`
	WorkerKey    string   `yaml:"worker_key" flag:"worker-key" doc:"File with the worker key, which readers need, and backups on one machine. Default in a repo: worker.key."`
	CommitterKey string   `yaml:"committer_key" flag:"committer-key" doc:"File with the committer key, which committers need, and backups on one machine. Default in a repo: committer.key."`
	Identity     string   `yaml:"identity" flag:"identity" doc:"File with the age identity, which restores need. Default: the user's configuration directory, bctl/identities/<repository id>.txt."`
	Passphrase   string   `yaml:"identity_passphrase_file" doc:"File with the passphrase of a protected identity file, for machines without a person at the terminal."`
	Recipients   []string `yaml:"recipients" doc:"Additional age recipients who can restore; used by init."`
	Codec        string   `yaml:"codec" default:"zstd-1" doc:"Compression of a new repository: zstd-1 to zstd-4, s2 or none; used by init."`

	Index    Index    `yaml:"index"`
	Store    Store    `yaml:"store"`
	Mirror   Mirror   `yaml:"mirror"`
	NATS     NATS     `yaml:"nats"`
	Worker   Worker   `yaml:"worker"`
	Pruner   Pruner   `yaml:"pruner"`
	Scrubber Scrubber `yaml:"scrubber"`
	Restorer Restorer `yaml:"restorer"`
	Log      Log      `yaml:"log"`
	HTTP     HTTP     `yaml:"http"`
	Trace    Trace    `yaml:"trace"`
}

// Index is the location of the index.
type Index struct {
	URL            string `yaml:"url" env:"BCTL_INDEX" flag:"index" secret:"url" doc:"postgres://user@host/database?sslmode=verify-full, or sqlite:/path/of/index.db."`
	Password       string `yaml:"password" secret:"yes" doc:"Postgres password, if the URL has none."`
	PasswordFile   string `yaml:"password_file" doc:"File with the Postgres password."`
	CAFile         string `yaml:"ca_file" doc:"PEM file of the only certificate authorities to trust. The server must then have the name in the URL (sslmode=verify-full), unless the URL sets another sslmode."`
	CertFile       string `yaml:"cert_file" doc:"Client certificate, PEM."`
	KeyFile        string `yaml:"key_file" doc:"Key of the client certificate, PEM."`
	MaxConnections int    `yaml:"max_connections" default:"0" means:"8" doc:"Maximum connections to Postgres per process; a committer has one more. pool_max_conns in the URL takes precedence over the default."`
}

// Store is the location of packs.
type Store struct {
	URL              string        `yaml:"url" env:"BCTL_STORE" flag:"store" doc:"s3://bucket/prefix, or a directory."`
	Endpoint         string        `yaml:"endpoint" doc:"URL of the S3 server, https://host:port. Default: Amazon's."`
	Region           string        `yaml:"region" doc:"S3 region. Default: AWS_REGION, then us-east-1."`
	AccessKey        string        `yaml:"access_key" doc:"S3 access key. Without it: credentials_file, the AWS environment variables, the files of AWS tools."`
	SecretKey        string        `yaml:"secret_key" secret:"yes" doc:"S3 secret key."`
	SecretKeyFile    string        `yaml:"secret_key_file" doc:"File with the S3 secret key."`
	SessionToken     string        `yaml:"session_token" secret:"yes" doc:"S3 session token."`
	SessionTokenFile string        `yaml:"session_token_file" doc:"File with the S3 session token."`
	CredentialsFile  string        `yaml:"credentials_file" doc:"Credentials in the format of ~/.aws/credentials."`
	Profile          string        `yaml:"profile" doc:"Profile in the credentials file."`
	InstanceRole     bool          `yaml:"instance_role" default:"false" doc:"Use the credentials of the machine's or container's role."`
	Addressing       string        `yaml:"addressing" default:"auto" doc:"Where requests name the bucket: path, host, or auto: host at Amazon and Google, path elsewhere."`
	CAFile           string        `yaml:"ca_file" doc:"PEM file of the only certificate authorities to trust."`
	CertFile         string        `yaml:"cert_file" doc:"Client certificate, PEM."`
	KeyFile          string        `yaml:"key_file" doc:"Key of the client certificate, PEM."`
	ObjectLock       string        `yaml:"object_lock" default:"off" flag:"object-lock" doc:"Lock objects in the bucket for as long as snapshots need them: off, governance or compliance. The bucket must have object lock enabled. Set it alike for init, and for all processes that back up or prune."`
	DeleteVersions   bool          `yaml:"delete_versions" default:"false" doc:"Pruning: in a bucket with versions, delete all versions of an object and its delete markers. Otherwise they are left to a lifecycle rule of the bucket."`
	Retry            time.Duration `yaml:"retry" default:"10m" doc:"How long requests are retried while the store does not answer."`
}

// Mirror is the location of the second copy of the store. Its settings are those of Store, and how
// it is kept.
type Mirror struct {
	URL               string        `yaml:"url" env:"BCTL_MIRROR" flag:"mirror" doc:"Second copy of the store: s3://bucket/prefix, or a directory."`
	KeepDeleted       string        `yaml:"keep_deleted" doc:"How long the mirror keeps what the store has no longer, such as 60d. Default: for ever."`
	Every             time.Duration `yaml:"every" default:"10m" doc:"bctl mirror run --watch: time from the end of a pass to the next."`
	BytesPerSecond    int           `yaml:"bytes_per_second" default:"0" means:"no limit" doc:"Maximum bytes per second that a mirror reads from the store, and as many that it reads from the mirror and writes to it."`
	RequestsPerSecond int           `yaml:"requests_per_second" default:"0" means:"no limit" doc:"Maximum requests per second to each of the two stores. 1,000 listed objects count as a request."`

	Endpoint         string        `yaml:"endpoint" doc:"As store.endpoint."`
	Region           string        `yaml:"region" doc:"As store.region."`
	AccessKey        string        `yaml:"access_key" doc:"As store.access_key."`
	SecretKey        string        `yaml:"secret_key" secret:"yes" doc:"As store.secret_key."`
	SecretKeyFile    string        `yaml:"secret_key_file" doc:"As store.secret_key_file."`
	SessionToken     string        `yaml:"session_token" secret:"yes" doc:"As store.session_token."`
	SessionTokenFile string        `yaml:"session_token_file" doc:"As store.session_token_file."`
	CredentialsFile  string        `yaml:"credentials_file" doc:"As store.credentials_file."`
	Profile          string        `yaml:"profile" doc:"As store.profile."`
	InstanceRole     bool          `yaml:"instance_role" default:"false" doc:"As store.instance_role."`
	Addressing       string        `yaml:"addressing" default:"auto" doc:"As store.addressing."`
	CAFile           string        `yaml:"ca_file" doc:"As store.ca_file."`
	CertFile         string        `yaml:"cert_file" doc:"As store.cert_file."`
	KeyFile          string        `yaml:"key_file" doc:"As store.key_file."`
	ObjectLock       string        `yaml:"object_lock" default:"off" doc:"Lock the mirror's objects for as long as the store has them: off, governance or compliance. The bucket must have object lock enabled."`
	DeleteVersions   bool          `yaml:"delete_versions" default:"false" doc:"As store.delete_versions."`
	Retry            time.Duration `yaml:"retry" default:"10m" doc:"As store.retry."`
}

// AtMirror returns the settings with the mirror in the place of the store.
func (c *Config) AtMirror() *Config {
	m, at := &c.Mirror, *c
	at.Store = Store{
		URL: m.URL, Endpoint: m.Endpoint, Region: m.Region, AccessKey: m.AccessKey, SecretKey: m.SecretKey, SecretKeyFile: m.SecretKeyFile,
		SessionToken: m.SessionToken, SessionTokenFile: m.SessionTokenFile, CredentialsFile: m.CredentialsFile, Profile: m.Profile,
		InstanceRole: m.InstanceRole, Addressing: m.Addressing, CAFile: m.CAFile, CertFile: m.CertFile, KeyFile: m.KeyFile,
		ObjectLock: m.ObjectLock, DeleteVersions: m.DeleteVersions, Retry: m.Retry,
	}
	return &at
}

// NATS is the message system of a fleet. Without a URL, bctl works on this machine alone.
type NATS struct {
	URL             string `yaml:"url" env:"BCTL_NATS" flag:"nats" secret:"url" doc:"nats://host:4222, or several separated by commas. Without it, everything runs in this process."`
	CredentialsFile string `yaml:"credentials_file" doc:"NATS credentials (JWT and seed)."`
	User            string `yaml:"user" doc:"NATS user."`
	Password        string `yaml:"password" secret:"yes" doc:"NATS password."`
	PasswordFile    string `yaml:"password_file" doc:"File with the NATS password."`
	CAFile          string `yaml:"ca_file" doc:"PEM file of certificate authorities to trust."`
	CertFile        string `yaml:"cert_file" doc:"Client certificate, PEM."`
	KeyFile         string `yaml:"key_file" doc:"Key of the client certificate, PEM."`
	InboxPrefix     string `yaml:"inbox_prefix" doc:"Prefix of the subjects of replies, if permissions require one. Default: _INBOX."`
	Replicas        int    `yaml:"replicas" default:"1" doc:"Copies of each stream: 1, 3 or 5."`
}

// Worker tunes the services. 0 is the default, which suits most installations. means is the value
// of that default in a service.
type Worker struct {
	Name        string        `yaml:"name" doc:"Name of this worker in progress displays and logs. Default: host name and process id."`
	Site        string        `yaml:"site" default:"default" doc:"Walker, reader: the site whose filers this worker can reach. Restorer: the site whose restores it takes part in."`
	StallAfter  time.Duration `yaml:"stall_after" default:"0s" means:"10s" doc:"Walker, reader: if a filer does not answer for this time, work on it counts as stalled and makes room for other work."`
	StopTimeout time.Duration `yaml:"stop_timeout" default:"0s" means:"10s" doc:"How long a service that is stopped may finish its work in progress before it hands the work back. It should be well below 60s, after which the work counts as lost."`
	Tasks       int           `yaml:"tasks" default:"0" means:"16" doc:"Walker: maximum concurrent walk tasks."`
	Directories int           `yaml:"directories" default:"0" means:"16" doc:"Walker: maximum directories per filer that are read concurrently, over all tasks."`
	Grain       time.Duration `yaml:"grain" default:"0s" means:"20ms" doc:"Walker, reader: coarsest granularity of a file system's timestamps."`
	Skew        time.Duration `yaml:"skew" default:"0s" means:"5s" doc:"Walker, reader: how far the clock of a file server may be behind this machine's."`
	Batches     int           `yaml:"batches" default:"0" means:"8" doc:"Reader: maximum batches that are read concurrently."`
	InHand      int           `yaml:"in_hand" default:"0" means:"64" doc:"Reader: maximum batches that are read or wait for their packs."`
	Workers     int           `yaml:"workers" default:"0" means:"one per CPU" doc:"Reader: goroutines that compress and seal."`
	Linger      time.Duration `yaml:"linger" default:"0s" means:"100ms" doc:"Reader: how long a pack that is not full waits for more content."`
	Lease       time.Duration `yaml:"lease" default:"0s" means:"60s" doc:"Committer: if a worker does not report its work in progress for this time, the work is reassigned. Work of a worker whose process died is reassigned sooner. Restorer: the same for its tasks; there, the default is 15s."`
	QueueLease  time.Duration `yaml:"queue_lease" default:"0s" means:"10m" doc:"Committer: after this time in a queue, work is assigned again. Set it alike on all committers."`
	Poll        time.Duration `yaml:"poll" default:"0s" means:"250ms" doc:"Committer: interval between searches for open work."`
	Queued      int           `yaml:"queued" default:"0" means:"512" doc:"Committer: maximum tasks, and maximum batches, that are assigned at a time."`
	MaxRunning  int           `yaml:"max_running" default:"0" means:"64" doc:"Committer: maximum running snapshots per site; policies start no more than that."`
	MaxPerFiler int           `yaml:"max_running_per_filer" default:"0" means:"4" doc:"Committer: maximum running snapshots per filer."`
}

// Pruner tunes the pruner. 0 is the default, as for Worker. For the limits of requests and bytes, 0
// means no limit.
type Pruner struct {
	Interval  time.Duration `yaml:"interval" default:"0s" means:"1h" doc:"Pruner: time until the next pass after one that was not complete. Otherwise, a pass begins within 30s after something may have become free."`
	MaxMemory int           `yaml:"max_memory" default:"0" means:"256" doc:"Pruner: maximum MiB for the marks of chunks that are needed. A repository that needs more is pruned in several rounds, each of which reads the index again."`
	MaxUnused int           `yaml:"max_unused" default:"0" means:"10" doc:"Pruner: maximum percentage of the stored bytes that may stay unused in packs that are needed in part. If there is more, the needed parts of such packs are copied, and the packs deleted. 100: packs are only deleted as a whole."`
	Parity    string        `yaml:"parity" doc:"Pruner, bctl prune: MEMBERS+PARITY, such as 20+2. Objects of packs then get parity objects, in groups of 20 or a few more, from which any two lost or damaged ones of a group come back, for 10% more space. off: parity objects are deleted. Empty: those that exist are kept, and no others are made."`
	// The store may be shared with backups and restores.
	RequestsPerSecond int `yaml:"requests_per_second" default:"500" doc:"Pruner: maximum requests per second to the store. Each object that is deleted counts as a request, and so do 1,000 listed ones. 0: no limit."`
	BytesPerSecond    int `yaml:"bytes_per_second" default:"0" means:"no limit" doc:"Pruner: maximum bytes per second that it reads from the store and writes to it to copy the needed parts of packs."`
}

// Scrubber tunes the scrubber. What it proves, and within which time, is in the index (bctl scrub
// set).
type Scrubber struct {
	BytesPerSecond int `yaml:"bytes_per_second" default:"0" means:"no limit" doc:"Scrubber: maximum bytes per second that it reads from the store. bctl scrub set limits what it reads a day."`
}

// Restorer tunes the restorer.
type Restorer struct {
	Targets []string `yaml:"targets" doc:"Restorer: the directories in which, and below which, it may restore. It needs at least one."`
	Tasks   int      `yaml:"tasks" default:"0" means:"2" doc:"Restorer: maximum tasks of restores at a time."`
}

// Log is the level and format of logs.
type Log struct {
	Level  string `yaml:"level" flag:"log-level" default:"info" doc:"Minimum level that is logged: debug, info, warn or error."`
	Format string `yaml:"format" flag:"log-format" default:"auto" doc:"text, json, or auto: text on a terminal, and for commands on one machine without --json; otherwise json."`
}

// HTTP is the listener for monitoring a service.
type HTTP struct {
	Listen       string   `yaml:"listen" doc:"Services: address (host:port) of /metrics, /healthz and /readyz. Without TLS, only the monitoring should be able to reach it. Without an address there is no listener and there are no metrics."`
	CertFile     string   `yaml:"cert_file" doc:"Certificate of the listener, PEM. With it, the listener accepts only TLS."`
	KeyFile      string   `yaml:"key_file" doc:"Key of the listener's certificate, PEM."`
	ClientCAFile string   `yaml:"client_ca_file" doc:"PEM file of the certificate authorities of clients: with it, /metrics and /debug/pprof require a client certificate, but /healthz and /readyz do not."`
	Clients      []string `yaml:"clients" doc:"Common names that a client's certificate may have. Empty: any."`
	Pprof        bool     `yaml:"pprof" default:"false" doc:"Services: also serve /debug/pprof, which lets clients read this process's memory."`
}

// Trace is the destination of traces.
type Trace struct {
	URL      string `yaml:"url" doc:"Services: OpenTelemetry collector for OTLP over HTTP, http://host:4318. Spans contain paths of directories. Without it, there are no traces."`
	CAFile   string `yaml:"ca_file" doc:"PEM file of the certificate authorities to trust for a collector with https."`
	CertFile string `yaml:"cert_file" doc:"Client certificate for the collector, PEM."`
	KeyFile  string `yaml:"key_file" doc:"Key of the client certificate, PEM."`
	Percent  int    `yaml:"percent" default:"100" doc:"Committer: percentage of snapshots that are traced."`
}

// Sources are the sources of settings, in order of precedence.
type Sources struct {
	Flags map[string]string                 // the given flags, by key
	Env   func(string) (string, bool)       // os.LookupEnv
	File  string                            // YAML; "": none
	Read  func(path string) ([]byte, error) // nil: os.ReadFile
}

// Load reads the settings. Errors wrap backup.ErrInvalid and name the source of the wrong setting.
// A file that cannot be read is also an error.
func Load(from Sources) (*Config, error) {
	if from.Read == nil {
		from.Read = os.ReadFile
	}
	c := &Config{}
	settings := settingsOf(c)
	for _, s := range settings {
		if s.Default != "" {
			if err := s.set(s.Default); err != nil {
				return nil, fmt.Errorf("default of %s: %w", s.Key, err)
			}
		}
	}
	if from.File != "" {
		data, err := from.Read(from.File)
		if err != nil {
			return nil, fmt.Errorf("configuration: %w", err)
		}
		if err := applyYAML(from.File, data, settings, from.Env); err != nil {
			return nil, err
		}
	}
	for _, s := range settings {
		if value, ok := from.Env(s.Env); ok && value != "" {
			if err := s.setHere(value, from.Env); err != nil {
				return nil, fmt.Errorf("environment variable %s: %w: %w", s.Env, err, backup.ErrInvalid)
			}
		}
		if value, ok := from.Flags[s.Key]; ok {
			if err := s.setHere(value, from.Env); err != nil {
				return nil, fmt.Errorf("flag --%s: %w: %w", s.Flag, err, backup.ErrInvalid)
			}
		}
	}
	err := c.complete(from.Read)
	return c, err
}

// complete reads secrets from their files, and sets the settings that follow from a repo.
func (c *Config) complete(read func(string) ([]byte, error)) error {
	secrets := []struct {
		key   string
		value *string
		file  string
	}{
		{"index.password", &c.Index.Password, c.Index.PasswordFile},
		{"store.secret_key", &c.Store.SecretKey, c.Store.SecretKeyFile},
		{"store.session_token", &c.Store.SessionToken, c.Store.SessionTokenFile},
		{"mirror.secret_key", &c.Mirror.SecretKey, c.Mirror.SecretKeyFile},
		{"mirror.session_token", &c.Mirror.SessionToken, c.Mirror.SessionTokenFile},
		{"nats.password", &c.NATS.Password, c.NATS.PasswordFile},
	}
	for _, s := range secrets {
		if s.file == "" {
			continue
		}
		if *s.value != "" {
			return fmt.Errorf("%s and %s_file are both set: %w", s.key, s.key, backup.ErrInvalid)
		}
		data, err := read(s.file)
		if err != nil {
			return fmt.Errorf("%s_file: %w", s.key, err)
		}
		*s.value = strings.TrimRight(string(data), "\r\n")
	}
	if c.Repo == "" {
		return nil
	}
	repo, err := filepath.Abs(c.Repo)
	if err != nil {
		return fmt.Errorf("repo: %w", err)
	}
	c.Repo = repo
	for value, name := range map[*string]string{&c.Index.URL: "index.db", &c.Store.URL: "store", &c.WorkerKey: "worker.key", &c.CommitterKey: "committer.key"} {
		if *value == "" {
			*value = filepath.Join(repo, name)
		}
	}
	return nil
}

// Fleet reports whether bctl works with services over NATS.
func (c *Config) Fleet() bool { return c.NATS.URL != "" }

// IndexPath returns the path of a SQLite index. ok is false if the index is Postgres.
func (c *Config) IndexPath() (path string, ok bool) {
	if strings.HasPrefix(c.Index.URL, "postgres://") || strings.HasPrefix(c.Index.URL, "postgresql://") {
		return "", false
	}
	return strings.TrimPrefix(c.Index.URL, "sqlite:"), true
}

// StorePath returns the path of a directory store. ok is false if the store is S3.
func (c *Config) StorePath() (path string, ok bool) {
	if strings.HasPrefix(c.Store.URL, "s3://") {
		return "", false
	}
	return strings.TrimPrefix(c.Store.URL, "file://"), true
}

// ObjectLock reports whether objects are locked in the store.
func (c *Config) ObjectLock() bool { return c.Store.ObjectLock != "off" && c.Store.ObjectLock != "" }

// LockDir returns the directory of the locks that keep two processes on this machine from backing
// up the same shard.
func (c *Config) LockDir() (string, error) {
	if c.Repo != "" {
		return filepath.Join(c.Repo, "locks"), nil
	}
	if path, ok := c.IndexPath(); ok && path != "" {
		return path + ".locks", nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a directory for locks: %w", err)
	}
	return filepath.Join(dir, "bctl", "locks"), nil
}
