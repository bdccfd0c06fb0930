// Package nfs3 is a client of NFS version 3 (RFC 1813) over TCP, in user space. It needs no mount,
// no kernel module and, unless the server demands reserved ports, no privileges.
//
// Server.Find finds the ports of a server, and Mounter.Mount returns the handle of the root of an
// export. From there, a Client reaches everything else: a Handle and a name give another Handle.
// The methods of Client are the procedures of the protocol, each with the section of RFC 1813 that
// defines it. They may be called concurrently. Package rpc describes connections, lost calls and
// timeouts.
//
// # Errors
//
// A procedure that the server refuses returns an *Error with the Status of the protocol. errors.Is
// recognizes it as the Status and as the syscall.Errno of the same meaning, and therefore as
// fs.ErrNotExist, fs.ErrPermission or fs.ErrExist. A handle that the server no longer knows is
// ErrStale. All other errors are those of package rpc, and say nothing about the file.
//
// A server that needs more time answers JUKEBOX. The call is repeated with growing pauses, until it
// has an answer or rpc.Options.RetryFor has passed.
//
// # Calls that were executed twice
//
// A server may execute a call, and lose its answer with the connection. When the call is sent
// again, the server should recognize it, but may not. CREATE, MKDIR, SYMLINK, MKNOD, LINK, REMOVE,
// RMDIR and RENAME can then fail although the first execution succeeded. Error.SentAgain reports
// that this is possible. The caller then looks at what is there.
//
// # Trust
//
// A server is not trusted with the memory of the client: package xdr checks all lengths, and a
// reply is limited to the size that its procedure can need. Names are the bytes that the server
// sends, which may be ".", ".." or have a slash: the caller checks them.
package nfs3
