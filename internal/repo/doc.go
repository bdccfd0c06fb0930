// Package repo makes repositories and opens them.
//
// A repository is five things that must agree on its id: the object
// store.ConfigName in the store, a row in the index, the committer key (a file
// that committers hold), the worker key (a file that readers hold) and the
// identity (a file that nobody holds but who restores).
//
// All five know the signer: the public half of the committer key. The store's
// object is believed only where another of them names the same signer; so
// somebody who can write to the store can replace nothing that is believed.
//
// # What a crash of Init leaves
//
// Init works in this order; each step finds what an earlier run has left.
//
//	step                    a crash after it leaves          the next Init
//	1 migrate the index     an empty index                   goes on
//	2 write committer key   a key of no repository           takes it and its id
//	3 write identity        a key that opens nothing         takes it
//	4 write worker key      a key of no repository           takes it
//	5 put the object        a repository without index row   goes on: THE REPOSITORY EXISTS
//	6 create index row      the repository                   backup.ErrExists
//
// After step 5 an Init that has lost a key file reads the key with the
// identity; without that, it says what is missing and changes nothing.
package repo
