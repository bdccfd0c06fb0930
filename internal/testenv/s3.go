package testenv

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// S3Server is an S3-compatible server process on a loopback port, plain HTTP, over a directory.
// Kill, Restart, Stop and the rest come from Process; a restart keeps the port and the directory.
type S3Server struct {
	*Process
	Endpoint  string // host:port
	AccessKey string
	SecretKey string
	Region    string
	Bucket    string // fresh and empty
	Dir       string // the directory of the backend: a folder a bucket
}

const s3Region = "us-east-1"

// VersityGW starts a versitygw with its posix backend. An object is a plain file under Dir.
func VersityGW(t testing.TB) *S3Server {
	t.Helper()
	path := versitygw.path(t)
	server := newS3Server(t)
	arguments := []string{"--port", server.Endpoint, "--region", s3Region, "--health", "/health", "--quiet"}
	arguments = append(arguments, "posix")
	if !xattrsWork(server.Dir) {
		sidecar := filepath.Join(filepath.Dir(server.Dir), "sidecar")
		if err := os.Mkdir(sidecar, 0o700); err != nil {
			t.Fatal(err)
		}
		arguments = append(arguments, "--sidecar", sidecar)
	}
	server.Process = Start(t, Command{
		Name:  "versitygw",
		Path:  path,
		Args:  append(arguments, server.Dir),
		Env:   []string{"ROOT_ACCESS_KEY=" + server.AccessKey, "ROOT_SECRET_KEY=" + server.SecretKey},
		Ready: HTTPReady("http://" + server.Endpoint + "/health"),
	})
	server.Bucket = server.NewBucket(t)
	return server
}

// Minio starts a minio on one directory, in its own format.
func Minio(t testing.TB) *S3Server {
	t.Helper()
	path := minioBin.path(t)
	server := newS3Server(t)
	server.Process = Start(t, Command{
		Name: "minio",
		Path: path,
		Args: []string{"server", "--quiet", "--address", server.Endpoint, server.Dir},
		Env: []string{
			"MINIO_ROOT_USER=" + server.AccessKey,
			"MINIO_ROOT_PASSWORD=" + server.SecretKey,
			"MINIO_REGION=" + s3Region,
			"MINIO_BROWSER=off", // the console would listen on a port of its own
			"MINIO_UPDATE=off",
			"MINIO_CI_CD=on", // it refuses a directory of the system's disk otherwise
		},
		Ready: HTTPReady("http://" + server.Endpoint + "/minio/health/ready"),
	})
	server.Bucket = server.NewBucket(t)
	return server
}

// MC returns the path of mc, which administers S3 servers.
func MC(t testing.TB) string {
	t.Helper()
	return mcBin.path(t)
}

func newS3Server(t testing.TB) *S3Server {
	t.Helper()
	directory := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(directory, 0o700); err != nil {
		t.Fatal(err)
	}
	return &S3Server{
		Endpoint:  fmt.Sprintf("127.0.0.1:%d", mustPort(t)),
		AccessKey: "test-" + randomName(),
		SecretKey: rand.Text(),
		Region:    s3Region,
		Dir:       directory,
	}
}

// NewBucket makes another bucket and returns its name.
func (s *S3Server) NewBucket(t testing.TB) string {
	t.Helper()
	client, err := minio.New(s.Endpoint, &minio.Options{
		Creds:  credentials.NewStaticV4(s.AccessKey, s.SecretKey, ""),
		Region: s.Region,
	})
	if err != nil {
		t.Fatal(err)
	}
	bucket := "bucket-" + randomName()
	if err := client.MakeBucket(context.Background(), bucket, minio.MakeBucketOptions{Region: s.Region}); err != nil {
		t.Fatalf("make a bucket: %v", err)
	}
	return bucket
}

// randomName returns 10 lower-case letters and digits.
func randomName() string { return strings.ToLower(rand.Text()[:10]) }
