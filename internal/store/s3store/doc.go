// Package s3store is the store.Store over an S3-compatible server.
//
// # Writing
//
// An object is one PUT of bytes in memory. Three headers make it safe to
// repeat, and safe to believe:
//
//   - x-amz-checksum-crc64nvme, computed before the first attempt and signed
//     with the request: what arrives damaged is refused. A server whose answer
//     does not repeat the checksum has its first object read back; from then on, and where the
//     header is refused, there is Content-MD5 instead.
//   - If-None-Match: *, on every PUT, so that a bucket policy can demand it and
//     nobody's credentials need the power to overwrite. Where a server does not
//     know it (501), Put does without.
//   - for PutNew, x-amz-meta-bctl-put with a number that is random per call.
//
// The states of a Put, and what ends them:
//
//	answer to the PUT           then
//	200, checksum repeated      done: durable, as far as the server promises it
//	412, name is taken          Put: the stored size and checksum (or else bytes) are
//	                            compared: equal is done, else ErrExists.
//	                            PutNew: the stored number is ours: an earlier attempt
//	                            was applied, done; else ErrExists.
//	400 BadDigest and the like  damaged on its way: again
//	409, 429, 5xx, none at all  unknown whether it was applied: after a pause the object is
//	                            looked at as for 412; if it is not there, again
//	403, 404 NoSuchBucket, …    final
//
// PutNew looks at the object first and once more at the end, since there are
// servers that ignore If-None-Match. On such a server alone two PutNews that
// run at the same moment may both succeed.
//
// The bodies of plain HTTP requests are not hashed with SHA-256 for the
// signature: the signed CRC finds accidents, and whoever can change what
// passes on the wire could drop it as well. What is in the objects is sealed.
//
// # Trying again
//
// Each operation is tried until Options.RetryFor is over, with growing, random
// pauses of up to some 15 seconds; Options.OnRetry hears of each. minio-go's own
// retries are off. Nothing can hang: an attempt that transfers no byte for
// Options.StallTimeout, or whose answer does not come for
// Options.ResponseTimeout, is given up and counts as failed.
//
// When a method returns, no goroutine reads or writes the caller's buffers.
package s3store
