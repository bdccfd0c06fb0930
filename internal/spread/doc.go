// Package spread is a restore that several restorers share (decision 65). It has what the
// operator's process does, and what that process and the restorers store in the index.
//
//	request.go  what is to be restored, and the result of a task
//	plan.go     cuts the directory into tasks
//	keys.go     seals the data keys of the packs that a task needs
//	follow.go   gives keys, and waits for the end
//
// The tasks are rows of the index (index.Restoring), and so are the keys and the results: no
// message can be lost, and any process may die.
//
//	dies                 what follows
//	a restorer           the lease of its task ends, and another restorer does the task again. What
//	                     is finished is kept, as when an ordinary restore is run again
//	the operator's       restorers finish the tasks that they have keys for, and then wait. The same
//	process              command continues
//	Postgres             restorers stop before their leases end, and try again
//
// A restorer has no identity. For each attempt at a task it gets the data keys of the packs that
// hold chunks of the task, sealed to a key pair that exists only in its memory. The operator's
// process decides from the index which packs these are; the restorer does not name any.
package spread
