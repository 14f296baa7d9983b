"""The column of keypoints in the table of mechanisms and kinds of labels, tests/mm/data/test_labels.py."""

HERE = "tests/extensions/keypoints"
FILE, RESULTS, OWN = (f"{HERE}/test_{name}.py" for name in ("keypoints", "keypoint_results", "keypoints_of_own_data"))
COLUMN = {
    "keypoint": {
        "order of names in files": ("right", f"{FILE}::test_keypoints_match_by_name"),
        "order of names in a checkpoint": ("right", f"{FILE}::test_keypoints_match_by_name"),
        "checks": ("right", f"{FILE}::test_faults", f"{FILE}::test_keypoints_without_a_partner_are_said"),
        "pictures of check": ("right", f"{FILE}::test_pictures_of_a_batch"),
        "flips": (
            *("right", f"{FILE}::test_a_flipped_figure_has_its_left_at_our_right"),
            f"{FILE}::test_stated_pairs_come_before_names",
        ),
        "crops, mosaics, pasted objects": ("refused", "keypoints", f"{OWN}::test_mosaics_do_not_mix_keypoints"),
        "joined data": ("right", f"{FILE}::test_pairs_of_joined_data_are_the_same"),
        "new": ("right", f"{OWN}::test_all_but_classes_and_points_is_from_the_file"),
        "tiles in predict": ("refused", "keypoints", f"{RESULTS}::test_results_and_pictures"),
        "tiles in test": ("refused", "keypoints", f"{FILE}::test_keypoints_in_tiles"),
        "results": ("right", f"{RESULTS}::test_results_and_pictures", f"{RESULTS}::test_a_skeleton_is_drawn"),
        "supervision": ("right", "tests/results/test_result.py::test_supervision"),
        "predict --as-dataset": (
            *("right", f"{RESULTS}::test_predict_writes_files_of_coco"),
            f"{FILE}::test_predictions_have_the_order_of_the_file",
        ),
        "to_coco": ("right", f"{RESULTS}::test_results_and_pictures"),
        "export": ("right", f"{RESULTS}::test_from_the_checkpoint_to_the_runtime"),
        "export --with-preprocessing": (
            *("right", "tests/extensions/photos/test_preprocessing.py::test_boxes_are_in_pixels_of_the_photo"),
        ),
        "verify": ("right", f"{RESULTS}::test_from_the_checkpoint_to_the_runtime"),
        "operating point": ("right", f"{FILE}::test_metric"),
        "joined models": ("right", f"{RESULTS}::test_joined_models"),
        "cached features": ("absent", "maps are stored without labels, which are read as ever"),
        "metric as pycocotools": ("right", "tests/peers/test_coco_metric.py::test_odd_files"),
    }
}
