// Package testenv gives tests real servers: Postgres, NATS JetStream and two S3-compatible stores,
// as processes of this machine, each on a loopback port of its own.
//
//	dsn := testenv.Postgres(t)                  // a fresh database
//	server := testenv.NATS(t)                   // JetStream, server.Kill(), server.Restart()
//	nodes := testenv.NATSCluster(t, 3)          // nodes[1].Kill()
//	server := testenv.Ganesha(t, dir)           // NFS version 3, exports dir
//	s3 := testenv.VersityGW(t)                  // or testenv.Minio(t): a fresh bucket
//
// Servers that accept only TLS, configured by an installation of bctl deploy (in place, for these
// addresses):
//
//	locked := server.Lock(t, dir+"/postgres")               // of PostgresServer
//	s3 := testenv.LockVersityGW(t, dir+"/s3", port)         // or testenv.LockMinio
//
// A server that a test has started is killed when the test ends, or when the test binary ends for
// any reason. If the test failed, the server's output is in the test's log. If a server is
// unavailable, the test fails with a line of advice, because a skipped test proves nothing. Only
// -short skips. Tests with an S3 server belong to make test-s3 (package testtarget), because these
// servers take minutes to build.
//
// Where programs come from:
//
//	program       setting               otherwise
//	Postgres      TEST_POSTGRES_DSN     a private cluster of the installed initdb and postgres
//	nats-server   BCTL_NATS_SERVER      Build: the version in go.mod
//	versitygw     BCTL_VERSITYGW        e2e/tool.sh versitygw (builds the pinned version once)
//	minio         BCTL_MINIO            e2e/tool.sh minio
//	mc            BCTL_MC               e2e/tool.sh mc
//	nfs-ganesha   (none)                the installed ganesha.nfsd; without it, the test is skipped
//
// The package is for Linux.
package testenv
