// Package s3store is the store.Store over an S3-compatible server.
//
// # Writing
//
// An object is one PUT of bytes in memory. Three headers make it safe to repeat the PUT, and safe
// to trust its answer:
//
//   - x-amz-checksum-crc64nvme, computed before the first attempt and signed with the request: the
//     server refuses a body that arrives damaged. If the answer does not repeat the checksum, the
//     first object is read back. From then on, and if the server refuses the header, Content-MD5
//     takes its place.
//   - If-None-Match: *, on every PUT, so that a bucket policy can require it and no credentials
//     need the permission to overwrite. If a server does not support it (501), Put works without.
//   - for PutNew, x-amz-meta-bctl-put with a token that is random per call.
//
// The states of a Put, and the next step in each:
//
//	answer to the PUT           next step
//	200, checksum repeated      success: as durable as the server promises
//	412, name is taken          Put: compare the stored size and checksum (or else the bytes):
//	                            equal is success, otherwise ErrExists.
//	                            PutNew: if the stored token is ours, an earlier attempt was
//	                            applied: success; otherwise ErrExists.
//	400 BadDigest and the like  damaged in transit: retry
//	409, 429, 5xx, no answer    it is unknown whether the PUT was applied: after a pause, check
//	                            the object as for 412; if it does not exist, retry
//	403, 404 NoSuchBucket, …    final
//
// PutNew checks the object before the PUT and again after it, because some servers ignore
// If-None-Match. Only on such a server, two PutNews that run at the same moment may both succeed.
//
// The bodies of plain HTTP requests are not hashed with SHA-256 for the signature. The signed CRC
// detects accidents, and an attacker who can change the traffic could remove a hash as well. The
// content of objects is sealed.
//
// # Retries
//
// Each operation is retried until Options.RetryFor is over, with growing, random pauses of up to
// about 15 seconds. Options.OnRetry is called before each pause. minio-go's own retries are
// disabled. No operation can hang: an attempt that transfers no byte for Options.StallTimeout, or
// gets no answer within Options.ResponseTimeout, is aborted and counts as failed.
//
// When a method returns, no goroutine reads or writes the caller's buffers.
package s3store
