import numpy as np

from enplace.frameworks.comparing import Way, first_step_difference


def way(losses, weight):
    losses = [[np.array(each)] for each in losses]
    return Way(what="a run", losses=losses, after_first={"w": np.array([weight])})


def test_the_first_of_two_steps_may_give_other_weights_if_the_next_loss_is_the_same():
    assert first_step_difference(way([1.0, 0.5], 0.1), way([1.0, 0.5], 0.2)) == 0
    assert first_step_difference(way([1.0, 0.5], 0.1), way([1.0, 0.75], 0.2)) == 0.1


def test_where_one_step_is_compared_it_must_give_the_same_weights():
    assert first_step_difference(way([1.0], 0.1), way([1.0], 0.1)) == 0
    assert first_step_difference(way([1.0], 0.1), way([1.0], 0.2)) == 0.1


def test_weights_are_compared_by_their_names_and_those_without_a_pair_differ():
    one, other = way([1.0, 0.5], 0.1), way([1.0, 0.5], 0.1)
    one.after_first = {"v": np.array([0.2]), "w": np.array([0.1])}
    other.after_first = {"w": np.array([0.1]), "v": np.array([0.2])}
    assert first_step_difference(one, other) == 0
    for lacks in ({"w": np.array([0.1])}, {}):
        other.after_first = lacks
        assert first_step_difference(one, other) == np.inf
