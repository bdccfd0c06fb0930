// Package repo creates and opens repositories.
//
// A repository has five parts that must agree on its id: the object store.ConfigName in the store,
// a row in the index, the committer key (a file that committers hold), the worker key (a file that
// readers hold) and the identity (a file that only those who restore hold).
//
// All five name the signer, the public half of the committer key. The store's object is trusted
// only if another part names the same signer. So an attacker with write access to the store cannot
// replace anything that is trusted.
//
// # Init after a crash
//
// Init works in this order, and each step uses what an earlier run left.
//
//	step                    a crash after it leaves          the next Init
//	1 migrate the index     an empty index                   continues
//	2 write committer key   a key without a repository       uses it and its id
//	3 write identity        a key that opens nothing         uses it
//	4 write worker key      a key without a repository       uses it
//	5 put the object        a repository without index row   continues: THE REPOSITORY EXISTS
//	6 create index row      the repository                   backup.ErrExists
//
// After step 5, an Init without a key file recovers the key with the identity. Without the
// identity, it reports what is missing and changes nothing.
package repo
